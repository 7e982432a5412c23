import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason, reason_by_type


def _integers(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bitwise(op_type, dtype):
    check(op_type, 18, [_integers(dtype, 3, 4), _integers(dtype, 4, seed=1)], tolerance=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_bitwise_not(dtype):
    check("BitwiseNot", 18, [_integers(dtype, 3, 4)], tolerance=0)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
@pytest.mark.parametrize("opset", opsets("BitShift"))
def test_bit_shift(opset, dtype, direction):
    check("BitShift", opset, [_integers(dtype, 3, 4), np.array([0, 1, 5, 7], dtype)], {"direction": direction})


@pytest.mark.parametrize(
    ("direction", "x", "expected"),
    [("LEFT", [-8, 64, -128, -1], [-32, 0, 0, 0]), ("RIGHT", [-8, 63, -128, 7], [-2, 15, -1, 0])],
)
def test_bit_shift_of_signed_numbers(direction, x, expected):
    inputs = [np.array(x, np.int8), np.array([2, 2, 8, -1], np.int8)]
    check("BitShift", 28, inputs, {"direction": direction}, oracle=[np.array(expected, np.int8)])


def test_bit_shift_needs_a_direction():
    x = np.array([1], np.uint8)
    assert reason("BitShift", 11, [x, x], {"direction": "UP"}) is Reason.INVALID_NODE


@pytest.mark.parametrize(("code", "dtype"), [(6, "int32"), (12, "uint32"), (1, "float32")])
def test_bit_cast(code, dtype):
    x = floats(3, 4)
    check("BitCast", 26, [x], {"to": code}, oracle=[x.view(dtype)], tolerance=0)


@pytest.mark.parametrize(("code", "expected"), [(8, Reason.UNSUPPORTED_TYPE), (10, Reason.INVALID_NODE)])
def test_bit_cast_to_another_size_is_refused(code, expected):
    assert reason_by_type("BitCast", 26, ["float32[3]"], "float16[3]", {"to": code}) is expected
