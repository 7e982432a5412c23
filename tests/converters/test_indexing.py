import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("indices", [np.array(1), np.array([2, 0], np.int32), np.array([[0, 1], [1, 2]])])
@pytest.mark.parametrize("opset", opsets("Gather"))
def test_gather(opset, indices, axis):
    check("Gather", opset, [floats(3, 4, 5), indices], {"axis": axis}, tolerance=0)


def test_gather_from_the_end():
    check("Gather", 13, [floats(3, 4), np.array([-1, -3])], {"axis": -2}, constant=[1], tolerance=0)


@pytest.mark.parametrize("opset", opsets("GatherElements"))
def test_gather_elements(opset):
    indices = np.array([[0, -1, 2], [2, 1, 0]])
    check("GatherElements", opset, [floats(3, 4), indices], {"axis": 0}, tolerance=0)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("opset", opsets("ArgMax"))
def test_arg_max_and_min(op_type, opset, axis, keepdims):
    check(op_type, opset, [floats(3, 4, 5)], {"axis": axis, "keepdims": keepdims}, tolerance=0)


@pytest.mark.parametrize("select_last_index", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_arg_max_and_min_with_ties(op_type, select_last_index):
    x = np.array([[1, 3, 3, 1], [2, 2, 2, 2]], np.float32)
    check(op_type, 13, [x], {"axis": -1, "select_last_index": select_last_index}, tolerance=0)


def test_top_k_with_an_attribute():
    check("TopK", 7, [floats(3, 6)], {"k": 4, "axis": 1}, outputs=2, tolerance=0)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("opset", opsets("TopK", 10))
def test_top_k(opset, axis, largest):
    attributes = {"axis": axis, **({"largest": largest} if opset >= 11 else {})}
    check("TopK", opset, [floats(3, 6), np.array([2])], attributes, constant=[1], outputs=2, tolerance=0)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_prefers_the_lower_index_among_equals(largest):
    x = np.array([2, 1, 2, 1, 2, 3], np.float32)
    check("TopK", 11, [x, np.array([4])], {"largest": largest}, constant=[1], outputs=2, tolerance=0)


def test_top_k_with_only_indices():
    check("TopK", 11, [floats(6), np.array([2])], constant=[1], outputs=["", "y1"], tolerance=0)


def test_computed_k_is_refused():
    inputs = [floats(6), np.array([2])]
    assert reason("TopK", 11, inputs, outputs=2) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("opset", opsets("CumSum"))
def test_cum_sum(opset, axis, attributes):
    check("CumSum", opset, [floats(3, 4), np.array(axis)], attributes, constant=[1], tolerance=1e-6)


def test_cum_sum_along_a_computed_axis_is_refused():
    assert reason("CumSum", 14, [floats(3, 4), np.array(1)]) is Reason.NOT_CONSTANT


def test_axis_out_of_range_is_refused():
    model_inputs = [floats(3, 4), np.array(2)]
    assert reason("CumSum", 14, model_inputs, constant=[1]) is Reason.INVALID_NODE
