import numpy as np
import onnx
import pytest
from onnx import helper

from nnadapter.drivers import Reason
from tests.converters.single_node import check, convert, floats, make, opsets, reason


@pytest.mark.parametrize("opset", opsets("Constant"))
def test_constant(opset):
    value = helper.make_tensor("t", 1, [2], [1.0, 2.0])
    check("Constant", opset, [], {"value": value}, tolerance=0)


@pytest.mark.parametrize(
    "attributes", [{"value_int": 3}, {"value_ints": [3, 4]}, {"value_float": 0.5}, {"value_floats": [0.5, 2.0]}]
)
def test_constant_of_numbers(attributes):
    check("Constant", 13, [], attributes, tolerance=0)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_string": "text"}, Reason.UNSUPPORTED_TYPE),
        ({"value_int": 1, "value_float": 1.0}, Reason.INVALID_NODE),
        ({"value": helper.make_tensor("t", onnx.TensorProto.STRING, [1], [b"text"])}, Reason.UNSUPPORTED_TYPE),
    ],
)
def test_constant_that_cannot_be_an_operand_is_refused(attributes, expected):
    model = make("Constant", 13, [], {"value_int": 1})
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    assert convert(model).verdicts[0].reason is expected


@pytest.mark.parametrize("opset", opsets("Shape"))
def test_shape(opset):
    check("Shape", opset, [floats(2, 3, 4)], tolerance=0)


@pytest.mark.parametrize(("start", "end"), [(1, 3), (-2, -1), (0, 9), (-9, 2), (2, 1)])
def test_shape_of_some_axes(start, end):
    check("Shape", 15, [floats(2, 3, 4)], {"start": start, "end": end}, tolerance=0)


@pytest.mark.parametrize("opset", opsets("Size"))
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_size(opset, shape):
    check("Size", opset, [floats(*shape)], tolerance=0)


@pytest.mark.parametrize("value", [None, np.array([3], np.int32), np.array([True]), np.array([0.5], np.float16)])
@pytest.mark.parametrize("opset", opsets("ConstantOfShape"))
def test_constant_of_shape(opset, value):
    given = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    for shape in ([2, 3], [2, 0], []):
        check("ConstantOfShape", opset, [np.array(shape, np.int64)], given, constant=[0], tolerance=0)


def test_constant_of_computed_shape_is_refused():
    assert reason("ConstantOfShape", 9, [np.array([2, 3])]) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


@pytest.mark.parametrize("attributes", [{}, {"k": 1}, {"k": -2, "dtype": 6}, {"k": 9}, {"dtype": 9}])
@pytest.mark.parametrize("opset", opsets("EyeLike"))
def test_eye_like(opset, attributes):
    check("EyeLike", opset, [floats(3, 4)], attributes, tolerance=0)


@pytest.mark.parametrize("opset", opsets("Range"))
@pytest.mark.parametrize("numbers", [(0, 5, 1), (10, 4, -2), (3, 3, 1), (5, 3, 1), (-3, 8, 4)])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_range(opset, numbers, dtype):
    check("Range", opset, [np.array(number, dtype) for number in numbers], constant=[0, 1, 2], tolerance=1e-6)


def test_range_in_narrow_steps():
    check("Range", 11, [np.array(number, np.float32) for number in (0.5, 2.1, 0.3)], constant=[0, 1, 2])


def test_range_without_a_step_is_refused():
    model = make("Range", 11, [np.array(number) for number in (0, 5, 1)], constant=[0, 1, 2])
    verdict = convert(model, {"x2": np.array(0)}).verdicts[0]
    assert verdict.reason is Reason.INVALID_NODE
    assert "step" in verdict.detail
