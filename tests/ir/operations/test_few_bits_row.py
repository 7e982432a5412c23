from __future__ import annotations

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir.definition import FUNCTIONS
from tests.ir.operations.shape_oracle import flops, infer, operand

FOUR_BITS = {"bits": 4, "block_size": 32}


def inputs(x, weight, scale, *others):
    return [operand(*x), operand(*weight, dtype="uint8"), operand(*scale), *others]


@pytest.mark.parametrize(
    "others",
    [[], [operand(3, 1, dtype="uint8")], [operand(3, 2)], [None, operand(3)]],
    ids=["none", "packed", "reals", "bias"],
)
def test_leading_axes_are_preserved(others):
    given = inputs((2, 5, 40), (3, 2, 16), (3, 2), *others)
    assert infer("MAT_MUL_N_BITS", given, **FOUR_BITS) == (operand(2, 5, 3),)
    assert flops("MAT_MUL_N_BITS", given, **FOUR_BITS) == 2 * 30 * 40 + 30 * (len(others) == 2)


@pytest.mark.parametrize(
    ("given", "attributes", "message"),
    [
        (inputs((2, 40), (3, 2, 16), (3, 2)), {"bits": 3, "block_size": 32}, "bits is 3, expected one of"),
        (inputs((2, 40), (3, 2, 16), (3, 2)), {"bits": 4, "block_size": 33}, "block_size is 33, expected"),
        (inputs((2, 40), (3, 16), (3, 2)), FOUR_BITS, r"weight has dimensions \[3, 16\], expected three"),
        (inputs((2, 70), (3, 2, 16), (3, 2)), FOUR_BITS, r"weight has dimensions .*, expected \[3, 3, 16\]"),
        (inputs((2, 40), (3, 2, 16), (6,)), FOUR_BITS, r"scale has dimensions \[6\], expected \[3, 2\]"),
        (
            inputs((2, 40), (3, 2, 16), (3, 2), operand(3, 2, dtype="uint8")),
            FOUR_BITS,
            r"zero_point has dimensions \[3, 2\], expected \[3, 1\]",
        ),
    ],
)
def test_misfit_inputs_are_refused(given, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^MAT_MUL_N_BITS: {message}"):
        infer("MAT_MUL_N_BITS", given, **attributes)


@pytest.mark.parametrize("units", [3, 0])
@pytest.mark.parametrize("points", [None, np.uint8, np.float32])
def test_product_of_depth_0_is_the_bias(units, points):
    """Weights without blocks or rows are empty arrays."""
    bias = np.arange(units, dtype=np.float32)
    zero_point = None if points is None else np.empty((units, 0), points)
    given = (np.empty((2, 0), np.float32), np.empty((units, 0, 16), np.uint8), np.empty((units, 0), np.float32))
    made = FUNCTIONS["MAT_MUL_N_BITS"](*given, zero_point, bias, **FOUR_BITS)
    np.testing.assert_array_equal(made, [bias, bias])
