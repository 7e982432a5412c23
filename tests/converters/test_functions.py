import ml_dtypes
import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason, reason_by_type

_ANY = ["Asinh", "Atan", "Cosh", "Sinh", "Tan", "Celu", "Shrink", "ThresholdedRelu"]
_BELOW_ONE = ["Acos", "Asin", "Atanh"]


def _cases(names):
    return [pytest.param(name, opset, id=f"{name}-{opset}") for name in names for opset in opsets(name)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4, 5), (2, 0)])
@pytest.mark.parametrize(("op_type", "opset"), _cases(_ANY))
def test_function(op_type, opset, shape):
    check(op_type, opset, [floats(*shape)], tolerance=1e-5)


@pytest.mark.parametrize(("op_type", "opset"), _cases(_BELOW_ONE))
def test_function_on_part_of_the_line(op_type, opset):
    check(op_type, opset, [np.tanh(floats(4, 5))], tolerance=1e-5)


@pytest.mark.parametrize("opset", opsets("Acosh"))
def test_acosh(opset):
    check("Acosh", opset, [1 + np.abs(floats(4, 5))], tolerance=1e-5)


@pytest.mark.parametrize("attributes", [{"alpha": 0.3}, {"alpha": 2.0}])
@pytest.mark.parametrize(("op_type", "opset"), _cases(["Celu", "ThresholdedRelu"]))
def test_alpha(op_type, opset, attributes):
    check(op_type, opset, [floats(4, 5) * 3], attributes, tolerance=1e-6)


def test_celu_without_alpha_is_refused():
    assert reason("Celu", 12, [floats(3)], {"alpha": 0.0}) is Reason.INVALID_NODE


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32"])
@pytest.mark.parametrize("attributes", [{"lambd": 1.5, "bias": 0.25}, {"lambd": -0.5, "bias": 1.0}, {"bias": 1.0}])
def test_shrink(attributes, dtype):
    bias = {} if dtype == "float32" else {"bias": 1.0}
    x = np.array([1, 2, 3, 40] if dtype == "uint8" else [-40, -2, -1, 1, 2, 3, 40], dtype)
    check("Shrink", 9, [x], {**attributes, **bias}, tolerance=0)


_STRANGE = np.array([np.nan, np.inf, -np.inf, 0, -1], np.float32)


@pytest.mark.parametrize("opset", opsets("IsNaN"))
def test_is_nan(opset):
    check("IsNaN", opset, [_STRANGE], tolerance=0)


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("opset", opsets("IsInf"))
def test_is_inf(opset, positive, negative):
    check("IsInf", opset, [_STRANGE], {"detect_positive": positive, "detect_negative": negative}, tolerance=0)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swiglu(alpha):
    gate, value = floats(3, 4) * 4, floats(3, 4, seed=1)
    expected = gate / (1 + np.exp(-np.float32(alpha) * gate)) * value
    check("SwiGLU", 28, [gate, value], {"alpha": alpha}, oracle=[expected])


def test_swiglu_does_not_broadcast():
    types = ["float32[3, 4]", "float32[4]"]
    assert reason_by_type("SwiGLU", 28, types, "float32[3, 4]") is Reason.INVALID_NODE


@pytest.mark.parametrize("opset", opsets("CastLike"))
@pytest.mark.parametrize("like", [np.zeros(2, np.int32), np.zeros((), np.bool_), np.zeros(3, np.float16)])
def test_cast_like(opset, like):
    check("CastLike", opset, [np.abs(floats(4, 5)) * 4, like], tolerance=0)


def test_cast_like_float8_without_saturation_is_refused():
    like = np.zeros(1, ml_dtypes.float8_e4m3fn)
    assert reason("CastLike", 19, [floats(3), like], {"saturate": 0}) is Reason.UNSUPPORTED_ATTRIBUTE
