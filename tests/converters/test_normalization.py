import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason
from tests.every import for_every


def _statistics(channels):
    return [floats(channels, seed=seed) for seed in (1, 2, 3)] + [np.abs(floats(channels, seed=4)) + 0.1]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 1e-2}])
@pytest.mark.parametrize("opset", opsets("BatchNormalization"))
def test_batch_normalization(opset, attributes, shape):
    inputs = [floats(*shape), *_statistics(3)]
    check("BatchNormalization", opset, inputs, attributes, constant=[1, 2, 3, 4], tolerance=1e-5)


def test_batch_normalization_in_training_is_refused():
    inputs = [floats(2, 3, 4), *_statistics(3)]
    assert reason("BatchNormalization", 14, inputs, {"training_mode": 1}, outputs=3) is Reason.UNSUPPORTED_ATTRIBUTE
    assert reason("BatchNormalization", 15, inputs, {"training_mode": 1}, outputs=3) is Reason.UNSUPPORTED_ATTRIBUTE


def test_batch_normalization_that_is_not_spatial_is_refused():
    inputs = [floats(2, 3), *_statistics(3)]
    assert reason("BatchNormalization", 7, inputs, {"spatial": 0}) is Reason.UNSUPPORTED_ATTRIBUTE


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(axis, bias):
    x = floats(2, 3, 4)
    inputs = [x, *(floats(*x.shape[axis:], seed=seed) for seed in ([1, 2] if bias else [1]))]
    check("LayerNormalization", 17, inputs, {"axis": axis}, tolerance=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [2, 3])
def test_layer_normalization_with_its_statistics(axis, bias, outputs):
    x = floats(2, 3, 4)
    inputs = [x, *(floats(*x.shape[axis:], seed=seed) for seed in ([1, 2] if bias else [1]))]
    check("LayerNormalization", 17, inputs, {"axis": axis, "epsilon": 1e-3}, outputs=outputs, tolerance=1e-5)


def test_layer_normalization_with_statistics_of_another_type_is_refused():
    half = [floats(2, 3).astype(np.float16), floats(3).astype(np.float16)]
    assert reason("LayerNormalization", 17, half, outputs=2) is Reason.UNSUPPORTED_ATTRIBUTE


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("opset", opsets("InstanceNormalization"))
def test_instance_normalization(opset, shape):
    check("InstanceNormalization", opset, [floats(*shape), floats(3, seed=1), floats(3, seed=2)], tolerance=1e-5)


@pytest.mark.parametrize("constant", [[], [1, 2]])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 4), (2, 6, 3, 5)])
@pytest.mark.parametrize(("opset", "count"), [(18, 3), (21, 6)])
def test_group_normalization(opset, count, shape, constant):
    if len(shape) == 2 and opset == 18:
        pytest.skip("version 18 has no reference for matrices")
    inputs = [floats(*shape), floats(count, seed=1), floats(count, seed=2)]
    check("GroupNormalization", opset, inputs, {"num_groups": 3}, constant=constant, tolerance=1e-5)


@pytest.mark.parametrize("attributes", [{"size": 3}, {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}])
@pytest.mark.parametrize("opset", opsets("LRN"))
def test_lrn(opset, attributes):
    # the batch equals the channels, as the loop of onnx.reference, the oracle for even sizes, runs over the batch
    check("LRN", opset, [floats(6, 6, 3, 4)], attributes, tolerance=1e-5)


@for_every(
    opset=opsets("Softmax"),
    op_type=["Softmax", "LogSoftmax"],
    shape=[(2, 3, 4), (2, 3, 1), (1, 3, 1), (1, 1, 1)],
    axis=[0, 1, 2, -1],
)
def test_softmax(op_type, opset, axis, shape):
    if axis < 0 and opset < 11:
        return  # no negative axes
    check(op_type, opset, [floats(*shape)], {"axis": axis}, tolerance=1e-5)


@pytest.mark.parametrize(("opset", "expected"), [(11, ["RESHAPE", "SOFTMAX", "RESHAPE"]), (13, ["SOFTMAX"])])
def test_softmax_over_several_axes_reshapes_to_a_matrix(opset, expected):
    conversion = check("Softmax", opset, [floats(2, 3, 4)], {"axis": 1})
    assert [operation.type for operation in conversion.model.operations] == expected
