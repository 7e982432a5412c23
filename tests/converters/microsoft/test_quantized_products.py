from __future__ import annotations

import numpy as np
import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.microsoft.test_quantized import DTYPES, OPSETS, integers, scale, types
from tests.converters.single_node import floats


@DTYPES
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution(per_channel, channels_last, dtype):
    x = integers(2, 7, 8, 4, dtype=dtype) if channels_last else integers(2, 4, 7, 8, dtype=dtype)
    weight, count = integers(6, 2, 3, 2, dtype=np.int8, seed=1), 6 if per_channel else 1
    w_scale = np.linspace(0.01, 0.03, count, dtype=np.float32) if per_channel else scale(0.02)
    w_zero = np.zeros(count, np.int8) if per_channel else np.int8(0)
    bias = np.arange(-3000, 3000, 1000, dtype=np.int32)
    inputs = [x, scale(0.03), dtype(7), weight, w_scale, w_zero, scale(0.7), dtype(9), bias]
    attributes = {"channels_last": channels_last, "group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1]}
    result = check("QLinearConv", inputs, attributes, constant=range(1, 9), opsets=OPSETS)
    assert types(result).count("CONV_2D") == 1


@DTYPES
def test_max_pool_with_channels_last(dtype):
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    check("NhwcMaxPool", [integers(2, 7, 8, 4, dtype=dtype)], attributes, opsets=OPSETS)


@pytest.mark.slow
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("c", [None, (3,), (1, 3), (1,)])
def test_qgemm_with_constants(c, turned, per_column):
    b = integers(3, 4, dtype=np.int8, seed=1) if turned else integers(4, 3, dtype=np.int8, seed=1)
    b_scale = scale([0.01, 0.02, 0.03]) if per_column else scale(0.02)
    b_zero = np.array([1, 2, 3], np.int8) if per_column else np.int8(5)
    bias = None if c is None else np.resize(np.array([900, -700, 20], np.int32), c)
    inputs = [integers(5, 4), scale(0.03), np.uint8(7), b, b_scale, b_zero, bias]
    constant = [place for place in range(1, 9) if place != 6 or c is not None]
    attributes = {"transB": turned, "alpha": 0.5}
    result = check("QGemm", [*inputs, scale(0.2), np.uint8(11)], attributes, constant=constant, opsets=OPSETS)
    assert "FULLY_CONNECTED" in types(result) and "DEQUANTIZE" not in types(result)
    check("QGemm", inputs, attributes, constant=constant[:-2], opsets=OPSETS)


@pytest.mark.parametrize("outputs", [[], [scale(0.2), np.uint8(11)]], ids=["reals", "quantized"])
def test_qgemm_of_computed_inputs(outputs):
    c = np.arange(15, dtype=np.int32).reshape(5, 3) * 100
    inputs = [integers(4, 5), scale(0.03), np.uint8(7), integers(4, 3, seed=1), scale(0.02), np.uint8(5), c, *outputs]
    check("QGemm", inputs, {"transA": 1}, constant=(1, 2, 4, 5, 7, 8)[: 4 + len(outputs)], opsets=OPSETS)


def present(inputs, *places):
    return [place for place in places if inputs[place] is not None]


@pytest.mark.parametrize("bias", [None, floats(3)], ids=["", "bias"])
@pytest.mark.parametrize("b_zero_point", [None, np.int8(5), np.array([1, 2, 3], np.int8)], ids=["", "one", "each"])
def test_products_with_float_results(b_zero_point, bias):
    b, b_scale = integers(4, 3, dtype=np.int8), scale([0.01, 0.02, 0.03] if np.ndim(b_zero_point) else 0.02)
    inputs = [integers(2, 5, 4), b, scale(0.03), b_scale, np.array(100, np.uint8), b_zero_point, bias]
    check("MatMulIntegerToFloat", inputs, constant=present(inputs, 1, 3, 5, 6), opsets=OPSETS)
    dynamic = [floats(2, 5, 4), b, b_scale, b_zero_point, bias]
    check("DynamicQuantizeMatMul", dynamic, constant=present(dynamic, 1, 2, 3, 4), opsets=OPSETS)
