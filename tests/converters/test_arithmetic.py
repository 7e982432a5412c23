import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason
from tests.every import for_every

_SHAPES = [((2, 3), (2, 3)), ((2, 3, 4), (4,)), ((3, 1), (1, 5)), ((), (2, 2)), ((0, 2), (1,))]


def _cases(names):
    return [(name, opset) for name in names for opset in opsets(name)]


@for_every(
    case=_cases(["Add", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub"]), shapes=_SHAPES
)
def test_binary(case, shapes):
    op_type, opset = case
    check(op_type, opset, [floats(*shapes[0]), floats(*shapes[1], seed=1)], tolerance=1e-6)


@pytest.mark.parametrize(("op_type", "opset"), _cases(["And", "Or", "Xor"]))
def test_logic(op_type, opset):
    check(op_type, opset, [floats(3, 4) > 0, floats(4, seed=1) > 0], tolerance=0)


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64"])
@pytest.mark.parametrize("opset", opsets("Equal"))
def test_equal(opset, dtype):
    check("Equal", opset, [np.array([[0, 1], [1, 1]], dtype), np.array([0, 1], dtype)], tolerance=0)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(op_type, dtype):
    check(op_type, 14, [np.array([-7, 7, 5], dtype), np.array([2, -2, 5], dtype)], tolerance=0)


def test_integer_division_truncates():
    check("Div", 14, [np.array([-7, 7, -6, -1], np.int32), np.array([2, -2, 3, 5], np.int32)], tolerance=0)


@pytest.mark.parametrize("opset", opsets("Pow"))
def test_pow(opset):
    check("Pow", opset, [np.abs(floats(3, 4)), floats(4, seed=1)], tolerance=1e-5)


@pytest.mark.parametrize("dtypes", [("float32", "int64"), ("int32", "int32"), ("int32", "float32")])
@pytest.mark.parametrize("opset", opsets("Pow", 12))
def test_pow_of_mixed_types(opset, dtypes):
    check("Pow", opset, [np.array([1, 2, 3], dtypes[0]), np.array([2, 3, 0], dtypes[1])], tolerance=1e-6)


@pytest.mark.parametrize("opset", opsets("PRelu"))
@pytest.mark.parametrize("slope", [(3, 1, 1), (1,), (2, 3, 4, 5)])
def test_prelu(opset, slope):
    check("PRelu", opset, [floats(2, 3, 4, 5), floats(*slope, seed=1)], tolerance=1e-6)


def test_prelu_of_integers_is_refused_by_data_type():
    assert reason("PRelu", 9, [np.array([1, 2], np.int32), np.array([1], np.int32)]) is Reason.UNSUPPORTED_DTYPE


@pytest.mark.parametrize("opset", opsets("Mod"))
@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_of_integers(opset, fmod):
    check("Mod", opset, [np.array([-7, 7, -6], np.int32), np.array([3, -3, 4], np.int32)], {"fmod": fmod}, tolerance=0)


@pytest.mark.parametrize("opset", opsets("Mod"))
def test_fmod_of_floats(opset):
    check("Mod", opset, [floats(3, 4) * 9, floats(4, seed=1)], {"fmod": 1}, tolerance=1e-5)


@pytest.mark.parametrize("opset", [10, 13])
def test_floored_mod_of_floats_is_refused_before_version_28(opset):
    assert reason("Mod", opset, [floats(3), floats(3)]) is Reason.INVALID_NODE


def test_floored_mod_of_floats():
    x, y = np.array([5.3, -5.3, 5.3, -5.3, 0, 4, -4, 1, -1], np.float32), np.array([2, 2, -2, -2, -3, 2], np.float32)
    y = np.concatenate([y, np.array([2, -np.inf, np.inf], np.float32)])
    check("Mod", 28, [x, y], oracle=[np.mod(x, y)])
    check("Mod", 28, [x[:, None], y[:4]], oracle=[np.mod(x[:, None], y[:4])])


@pytest.mark.parametrize("opset", opsets("Where"))
def test_where(opset):
    check("Where", opset, [floats(3, 1) > 0, floats(4, seed=1), floats(2, 1, 1, seed=2)], tolerance=0)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("op_type", "opset"), _cases(["Max", "Mean", "Min", "Sum"]))
def test_variadic(op_type, opset, count):
    check(op_type, opset, [floats(3, 4, seed=seed) for seed in range(count)], tolerance=1e-6)


@pytest.mark.parametrize("op_type", ["Max", "Mean", "Min", "Sum"])
def test_variadic_broadcasts_since_version_8(op_type):
    check(op_type, 8, [floats(3, 4), floats(4, seed=1), floats(2, 1, 1, seed=2)], tolerance=1e-6)
