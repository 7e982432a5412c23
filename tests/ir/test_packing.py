from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import DataType
from nnadapter.ir.deferred_arrays import pack, unpack


def by_hand(values):
    """Pack two values per byte, the first in the low half."""
    nibbles = [value & 15 for value in values] + [0] * (len(values) % 2)
    return [low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)]


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(DataType.INT4, -8, 7), (DataType.UINT4, 0, 15)], ids=["int4", "uint4"]
)
def test_pack_and_unpack_round_trip(dtype, low, high):
    @given(st.lists(st.integers(low, high), max_size=9))
    def law(values):
        array = np.array(values, np.int8).astype(dtype.array_type)
        packed = pack(array)
        assert packed.tolist() == by_hand(values)
        assert unpack(packed, dtype, array.shape).astype(int).tolist() == values

    law()


def test_dimensions_round_trip():
    array = np.arange(-3, 3, dtype=np.int8).astype(ml_dtypes.int4).reshape(2, 3, 1)
    np.testing.assert_array_equal(unpack(pack(array), DataType.INT4, array.shape), array)
