"""QLinear… ops with random integers and scales, equal to ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.microsoft.function_node import check, refusal
from tests.converters.single_node import floats
from tests.models import largest_int8

OPSETS = (13, 23)
DTYPES = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def integers(*shape, dtype=np.uint8, seed=0):
    limits = np.iinfo(dtype)
    least = limits.min if dtype != np.int8 or largest_int8() == limits.max else -largest_int8()
    most = limits.max if dtype != np.int8 else largest_int8()
    return np.random.default_rng(seed).integers(least, most, shape, dtype, endpoint=True)


def scale(value):
    return np.array(value, np.float32)


def byte(value):
    return np.array(value, np.uint8)


def types(conversion):
    return [operation.type for operation in conversion.model.operations]


@DTYPES
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (1, 3, 1)])
def test_arithmetic(op_type, dtype, shape):
    a, b = integers(2, 3, 4, dtype=dtype), integers(*shape, dtype=dtype, seed=1)
    inputs = [a, scale(0.031), dtype(100), b, scale(0.017), dtype(3), scale(0.043), dtype(90)]
    result = check(op_type, inputs, constant=(1, 2, 4, 5, 6, 7), opsets=OPSETS)
    assert [each for each in types(result) if each != "STORAGE_CAST"] == [op_type[7:].upper()]


def test_computed_scales():
    inputs = [integers(2, 3), scale(0.031), byte(100), integers(2, 3, seed=1), scale(0.017), byte(3)]
    check("QLinearAdd", [*inputs, scale(0.043), byte(90)], constant=(), opsets=OPSETS)


@DTYPES
@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.3}),
        ("QLinearSoftmax", {"opset": 13, "axis": 1}),
        ("QLinearSoftmax", {"opset": 13}),
        ("QLinearSoftmax", {"opset": 12}),
        ("QLinearSoftmax", {"opset": 12, "axis": 1}),
        ("QLinearSoftmax", {"opset": 12, "axis": 2}),
    ],
)
def test_functions(op_type, attributes, dtype):
    low = dtype(0 if dtype is np.uint8 else -128)
    inputs = [integers(2, 3, 4, dtype=dtype), scale(0.031), dtype(90), scale(1 / 256), low]
    check(op_type, inputs, attributes, constant=(1, 2, 3, 4), opsets=OPSETS)


@DTYPES
def test_concat(dtype):
    inputs = [scale(0.04), dtype(9)]
    for number in range(3):
        inputs += [integers(2, number + 1, dtype=dtype, seed=number), scale(0.03 + 0.01 * number), dtype(number)]
    check("QLinearConcat", inputs, {"axis": 1}, constant=(0, 1, 3, 4, 6, 7, 9, 10), opsets=OPSETS)


def test_a_part_without_its_scale_is_refused():
    verdict = refusal(
        "QLinearConcat", [scale(0.1), np.uint8(0), integers(2), scale(0.1)], {"axis": 0}, constant=(0, 1, 3)
    )
    assert verdict.reason is Reason.INVALID_NODE and "4 inputs" in verdict.detail


def test_where():
    condition = floats(2, 3, 4) > 0
    inputs = [condition, integers(2, 3, 4), scale(0.031), np.uint8(100), integers(4, seed=1), scale(0.017), np.uint8(3)]
    check("QLinearWhere", [*inputs, scale(0.05), np.uint8(90)], constant=(2, 3, 5, 6, 7, 8), opsets=OPSETS)


@DTYPES
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 3], "strides": [2, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_average_pool(attributes, channels_last, dtype):
    inputs = [integers(2, 7, 8, 3, dtype=dtype), scale(0.0713), dtype(10), scale(0.0431), dtype(20)]
    attributes = {**attributes, "channels_last": channels_last}
    check("QLinearAveragePool", inputs, attributes, constant=(1, 2, 3, 4), opsets=OPSETS)


def test_averages_with_other_divisors_are_refused():
    inputs = [integers(1, 1, 5, 5), scale(0.1), np.uint8(0), scale(0.1), np.uint8(0)]
    verdict = refusal("QLinearAveragePool", inputs, {"kernel_shape": [2, 2], "ceil_mode": 1, "count_include_pad": 1})
    assert verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and "'count_include_pad'" in verdict.detail


@DTYPES
@pytest.mark.parametrize("channels_last", [0, 1])
def test_global_average_pool(channels_last, dtype):
    inputs = [integers(2, 5, 7, 3, dtype=dtype), scale(0.0713), dtype(10), scale(0.0431), dtype(20)]
    attributes = {"channels_last": channels_last}
    check("QLinearGlobalAveragePool", inputs, attributes, constant=(1, 2, 3, 4), opsets=OPSETS)


@DTYPES
def test_sixteen_bits_before_onnx_has_them(dtype):
    wide = {np.uint8: np.uint16, np.int8: np.int16}[dtype]
    inputs = [floats(3, 5) * 9, scale([0.01, 0.02, 0.03]), np.array([5, 300, 20000], wide)]
    check("QuantizeLinear", inputs, {"axis": 0}, constant=(1, 2), opsets=(23,))
    inputs = [integers(3, 5, dtype=wide), scale([0.01, 0.02, 0.03]), np.array([5, 300, 20000], wide)]
    check("DequantizeLinear", inputs, {"axis": 0}, constant=(1, 2), opsets=(23,))
