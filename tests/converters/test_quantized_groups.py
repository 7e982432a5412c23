import numpy as np
import pytest

from nnadapter.onnx import Refusal
from tests.converters.quantized_group import RESULT, Group, bias, check, picture, weights


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
def test_convolutions(relu, axis):
    x, w = picture(1, 4, 7, 6), weights(6, 4, 3, 3, axis=axis)
    operands, attributes = [x, w, bias(x, w)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    group = Group("Conv", operands, RESULT, attributes, constants=(1, 2), relu=relu)
    assert check(group, optimized=True) == ["STORAGE_CAST", "CONV_2D"]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
def test_convolutions_of_sequences(relu, axis):
    x, w = picture(2, 4, 11), weights(6, 2, 3, axis=axis)
    attributes = {"pads": [1, 0], "strides": [2], "group": 2}
    group = Group("Conv", [x, w, bias(x, w)], RESULT, attributes, constants=(1, 2), relu=relu)
    assert check(group, optimized=True) == ["STORAGE_CAST", "RESHAPE", "CONV_2D", "RESHAPE"]


def test_pooling_of_sequences():
    x = picture(2, 4, 11)
    for op_type, result in (("MaxPool", (np.float32(x[1]), np.uint8(x[2]))), ("AveragePool", RESULT)):
        group = Group(op_type, [x], result, {"kernel_shape": [3], "strides": [2]})
        assert len(check(group)) == 4


@pytest.mark.parametrize("transposed", [0, 1])
def test_fully_connected_layers(transposed):
    x, w = picture(5, 30), weights(*((8, 30) if transposed else (30, 8)), axis=None)
    group = Group("Gemm", [x, w, bias(x, (np.empty(8), *w[1:]))], RESULT, {"transB": transposed}, constants=(1, 2))
    assert check(group, optimized=True) == ["STORAGE_CAST", "FULLY_CONNECTED"]


def test_products():
    group = Group("MatMul", [picture(2, 5, 30), weights(30, 8, axis=1)], RESULT, constants=(1,))
    assert check(group, optimized=True)[-1] == "MAT_MUL"
    group = Group("MatMul", [picture(2, 5, 9), picture(2, 9, 4, seed=3, scale=0.01, zero_point=7)], RESULT)
    assert check(group, optimized=True)[-1] == "MAT_MUL"


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Max", "Min"])
def test_binary_operations(op_type):
    operands = [picture(2, 3, 8, 8), picture(3, 1, 8, seed=4, scale=0.011, zero_point=3)]
    assert check(Group(op_type, operands, RESULT))[-1] in ("ADD", "SUB", "MUL", "MAX", "MIN")


def test_an_addition_with_a_constant_and_an_activation():
    operands = [picture(2, 3, 8), picture(3, 1, seed=4, scale=0.011, zero_point=3)]
    assert check(Group("Add", operands, RESULT, constants=(1,), relu=True)) == ["STORAGE_CAST", "ADD"]


@pytest.mark.parametrize("op_type", ["Relu", "LeakyRelu", "HardSigmoid", "HardSwish", "Abs", "Neg"])
def test_elementwise_functions(op_type):
    assert len(check(Group(op_type, [picture(4, 64)], RESULT))) == 2


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("Transpose", {"perm": [1, 0, 2, 3]}), ("MaxPool", {"kernel_shape": [2, 2]}), ("Flatten", {})],
)
def test_movement_preserves_the_scale(op_type, attributes):
    x = picture(2, 4, 6, 6)
    result = (np.float32(x[1]), np.uint8(x[2]))
    assert len(check(Group(op_type, [x], result, attributes))) == 2
    with pytest.raises(Refusal, match="the operation has no quantized results"):
        Group(op_type, [x], RESULT, attributes).converted()


@pytest.mark.parametrize(
    ("op_type", "attributes"), [("GlobalAveragePool", {}), ("ReduceMean", {"keepdims": 0}), ("Softmax", {"axis": 1})]
)
def test_means_are_rounded_once(op_type, attributes):
    operation = check(Group(op_type, [picture(2, 4, 6, 6)], RESULT, attributes))[-1]
    assert operation == ("SOFTMAX" if op_type == "Softmax" else "REDUCE_MEAN")


def test_concat_of_different_scales():
    operands = [picture(2, 3), picture(4, 3, seed=5, scale=0.007, zero_point=9)]
    assert check(Group("Concat", operands, RESULT, {"axis": 0}))[-1] == "CONCAT"


def test_bias_of_another_scale_is_refused():
    x, w = picture(1, 4, 7, 6), weights(6, 4, 3, 3)
    values, scale, *remaining = bias(x, w)
    group = Group("Conv", [x, w, (values, scale * 2, *remaining)], RESULT, constants=(1, 2))
    with pytest.raises(Refusal, match="a scale other than"):
        group.converted()
    with pytest.raises(Refusal, match="not quantized as int32"):
        Group("Conv", [x, w, np.zeros(6, np.float32)], RESULT, constants=(1,)).converted()


def test_op_without_quantized_form_is_refused():
    with pytest.raises(Refusal, match="no quantized form"):
        Group("Floor", [picture(3)], RESULT).converted()


@pytest.mark.parametrize("op_type", ["Relu", "LeakyRelu", "Abs"])
def test_overflowing_scales_raise_no_warning(op_type):
    x = (np.arange(256, dtype=np.uint8), np.float32(3e38), 120, None)
    assert len(check(Group(op_type, [x], (x[1], np.uint8(120))))) == 2
