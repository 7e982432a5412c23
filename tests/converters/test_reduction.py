import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason
from tests.every import for_every

_NAMES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_OPS = [f"Reduce{name}" for name in _NAMES]
_INPUT_SINCE = {name: 13 if name == "ReduceSum" else 18 for name in _OPS}


def _cases():
    return [(name, opset) for name in _OPS for opset in opsets(name)]


def _check(op_type, opset, axes, attributes, **keywords):
    x = np.abs(floats(2, 3, 4)) + 0.1
    if opset < _INPUT_SINCE[op_type]:
        return check(op_type, opset, [x], {**attributes, **({} if axes is None else {"axes": axes})}, **keywords)
    given = [] if axes is None else [np.array(axes, np.int64)]
    return check(op_type, opset, [x, *given], attributes, constant=[1][: len(given)], **keywords)


@for_every(case=_cases(), axes=[None, [1], [2, 0], [-1]], keepdims=[0, 1])
def test_reductions(case, axes, keepdims):
    op_type, opset = case
    if opset < 11 and axes == [-1]:
        return  # no negative axes
    _check(op_type, opset, axes, {"keepdims": keepdims}, tolerance=1e-5)


_NOTHING = {"ReduceL1": np.abs, "ReduceL2": np.abs, "ReduceLogSum": np.log, "ReduceSumSquare": np.square}


@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize("op_type", _OPS)
def test_reduction_without_axes(op_type, axes):
    x = np.abs(floats(2, 3, 4)) + 0.1
    expected = _NOTHING.get(op_type, lambda value: value)(x)
    _check(op_type, 18, axes, {"noop_with_empty_axes": 1}, tolerance=1e-6, oracle=[expected])


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceMin"])
def test_reduction_of_integers(op_type):
    x = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    check(op_type, 18, [x, np.array([1])], constant=[1], tolerance=0)


def test_log_sum_exp_of_large_and_infinite_numbers():
    x = np.array([[1000, 1001], [-np.inf, -np.inf], [np.inf, 1]], np.float32)
    check("ReduceLogSumExp", 13, [x], {"axes": [1]}, tolerance=1e-6)


def test_reduction_to_a_scalar_and_of_a_scalar():
    check("ReduceSum", 13, [floats(3)], {"keepdims": 0}, tolerance=1e-6)
    check("ReduceSum", 13, [floats()], {"keepdims": 1}, tolerance=1e-6)


def test_computed_axes_are_refused():
    assert reason("ReduceSum", 13, [floats(2, 3), np.array([1])]) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


def test_root_of_integers_is_refused_by_data_type():
    assert reason("ReduceL2", 13, [np.ones((2, 3), np.int32)]) is Reason.UNSUPPORTED_DTYPE


def test_booleans_are_refused_by_data_type():
    assert reason("ReduceMax", 20, [np.ones((2, 3), bool)]) is Reason.UNSUPPORTED_DTYPE
