import ml_dtypes
import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, convert, floats, make, opsets, reason
from tests.every import for_every

_FLOATING = [
    "Cos",
    "Erf",
    "Exp",
    "Mish",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Softsign",
    "Tanh",
]
_SIGNED = ["Abs", "Ceil", "Floor", "Identity", "Neg", "Sign"]
_POSITIVE = ["Log", "Sqrt"]
_SHAPES = [(), (3,), (2, 3, 4, 5), (2, 0)]


def _cases(names):
    return [(name, opset) for name in names for opset in opsets(name)]


@for_every(case=_cases([*_FLOATING, *_SIGNED]), shape=_SHAPES)
def test_unary(case, shape):
    op_type, opset = case
    check(op_type, opset, [floats(*shape) * 3], tolerance=2e-6)


@pytest.mark.parametrize(("op_type", "opset"), _cases(_POSITIVE))
def test_unary_of_positive_numbers(op_type, opset):
    check(op_type, opset, [np.abs(floats(3, 4))], tolerance=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("op_type", ["Abs", "Exp", "Tanh", "Sqrt"])
def test_unary_of_other_floats(op_type, dtype):
    check(op_type, 13, [np.abs(floats(3, 4)).astype(dtype)], tolerance=1e-3 if dtype == "float16" else 1e-12)


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Sign", "Identity"])
def test_unary_of_integers(op_type):
    check(op_type, 13, [np.array([-5, 0, 7], np.int32)], tolerance=0)


def test_round_rounds_ties_to_even():
    check("Round", 11, [np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)], tolerance=0)


def test_not():
    check("Not", 7, [np.array([True, False])], tolerance=0)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.3}])
@pytest.mark.parametrize(("op_type", "opset"), _cases(["Elu", "HardSigmoid", "LeakyRelu", "Selu", "Swish"]))
def test_parametric(op_type, opset, attributes):
    check(op_type, opset, [floats(4, 5) * 4], attributes, tolerance=2e-6)


def test_hard_sigmoid_with_both_parameters():
    check("HardSigmoid", 7, [floats(4, 5) * 4], {"alpha": 0.4, "beta": 0.3}, tolerance=1e-6)


@pytest.mark.parametrize("opset", opsets("HardSwish"))
def test_hard_swish(opset):
    check("HardSwish", opset, [floats(4, 5) * 4], tolerance=1e-6)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check("Gelu", 20, [floats(4, 5) * 4], {"approximate": approximate}, tolerance=1e-6)


@pytest.mark.parametrize("to", ["int32", "float16", "bool", "uint8", "float64"])
@pytest.mark.parametrize("opset", opsets("Cast"))
def test_cast(opset, to):
    code = {"int32": 6, "float16": 10, "bool": 9, "uint8": 2, "float64": 11}[to]
    check("Cast", opset, [np.abs(floats(4, 5)) * 4], {"to": code}, tolerance=0)


def test_cast_to_float8_saturates():
    expected = np.array([448, -448, 3.25], ml_dtypes.float8_e4m3fn)
    check("Cast", 19, [np.array([1e9, -1e9, 3.3], np.float32)], {"to": 17}, tolerance=0, oracle=[expected])


def test_cast_to_float8_without_saturation_is_refused():
    assert reason("Cast", 19, [floats(3)], {"to": 17, "saturate": 0}) is Reason.UNSUPPORTED_ATTRIBUTE


@pytest.mark.parametrize("code", [8, 18])
def test_cast_to_invalid_data_type_is_refused(code):
    assert reason("Cast", 19, [floats(3)], {"to": code}) is Reason.UNSUPPORTED_TYPE


@pytest.mark.parametrize("attributes", [{}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}])
def test_clip_with_attributes(attributes):
    check("Clip", 7, [floats(4, 5)], attributes, tolerance=0)


@pytest.mark.parametrize("bounds", [(None, None), (-0.5, None), (None, 0.5), (-0.5, 0.5), (0.5, -0.5)])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("opset", opsets("Clip", 11))
def test_clip_with_inputs(opset, constant, bounds):
    limits = [None if bound is None else np.array(bound, np.float32) for bound in bounds]
    present = [index for index, limit in enumerate(limits, 1) if limit is not None]
    conversion = check("Clip", opset, [floats(4, 5), *limits], constant=present if constant else (), tolerance=0)
    if constant or not present:
        assert [operation.type for operation in conversion.model.operations] == ["CLIP"]


def test_clip_with_one_bound_constant():
    check("Clip", 13, [floats(9), np.float32(-1).reshape(()), np.float32(0.5).reshape(())], constant=[1], tolerance=0)


def test_clip_of_integers_beyond_float64():
    low = np.array(2**53 + 1, np.int64)
    conversion = check("Clip", 13, [np.array([0, 2**60], np.int64), low], constant=[1], tolerance=0)
    assert [operation.type for operation in conversion.model.operations] == ["MAX"]


@pytest.mark.parametrize("opset", opsets("Dropout"))
def test_dropout_copies(opset):
    check("Dropout", opset, [floats(4, 5)], tolerance=0)


@pytest.mark.parametrize("opset", opsets("Dropout", 10))
def test_dropout_makes_a_mask(opset):
    check("Dropout", opset, [floats(4, 5)], outputs=2, tolerance=0)


def test_dropout_with_unread_mask():
    model = make("Dropout", 7, [floats(4, 5)], outputs=2)
    del model.graph.output[1]
    assert [operation.type for operation in convert(model).model.operations] == ["ASSIGN"]


@pytest.mark.parametrize("constant", [[1], [1, 2]])
def test_dropout_in_inference_mode(constant):
    ratio, training = np.array(0.3, np.float32), np.array(False)
    check("Dropout", 13, [floats(4), ratio, training][: len(constant) + 1], constant=constant, tolerance=0)


def test_dropout_in_training_mode_is_refused():
    inputs = [floats(4), np.array(0.3, np.float32), np.array(True)]
    assert reason("Dropout", 13, inputs, constant=[1, 2]) is Reason.UNSUPPORTED_ATTRIBUTE
    assert reason("Dropout", 13, inputs, constant=[1]) is Reason.NOT_CONSTANT
