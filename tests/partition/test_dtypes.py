import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from partition.graph import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE

DENSE = [
    number for number in TensorProto.DataType.values() if number not in (TensorProto.UNDEFINED, TensorProto.STRING)
]


def test_every_element_type_of_onnx_is_known():
    assert set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED} <= set(DTYPE_OF_ELEMENT_TYPE)
    assert DTYPE_OF_ELEMENT_TYPE[TensorProto.STRING] == "string"


@pytest.mark.parametrize("number", DENSE)
def test_names_and_sizes_equal_numpy(number):
    expected = onnx.helper.tensor_dtype_to_np_dtype(number)
    name = DTYPE_OF_ELEMENT_TYPE[number]
    assert name == expected.name
    assert ELEMENT_TYPE_OF_DTYPE[name] == number
    assert ITEMSIZE_OF_DTYPE[name] == bits(expected) / 8


def bits(dtype):
    """Return the bits per element according to numpy and ml_dtypes."""
    narrow = dtype.kind == "V" or dtype.name in ("int2", "int4", "uint2", "uint4")
    if dtype == np.bool_ or not narrow or dtype.itemsize > 1:
        return dtype.itemsize * 8
    return (ml_dtypes.iinfo if "int" in dtype.name else ml_dtypes.finfo)(dtype).bits
