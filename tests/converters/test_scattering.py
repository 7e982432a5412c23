import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, convert, floats, make, opsets, reason

_ROWS = [np.array([[0, 2], [1, -1], [0, 0]]), np.array([[2], [-3], [0]]), np.array([[[1, 0, 2]], [[-1, -1, -1]]])]


@pytest.mark.parametrize("indices", _ROWS)
@pytest.mark.parametrize("opset", opsets("GatherND"))
def test_gather_nd(opset, indices):
    check("GatherND", opset, [floats(3, 4, 5), indices], tolerance=0)


@pytest.mark.parametrize("opset", opsets("GatherND", 12))
def test_gather_nd_by_batches(opset):
    indices = np.array([[[1, 0], [0, 2]], [[-1, -1], [3, 1]]])
    check("GatherND", opset, [floats(2, 4, 3, 2), indices], {"batch_dims": 1}, tolerance=0)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("opset", opsets("ScatterElements"))
def test_scatter_elements(opset, dtype, axis):
    indices = np.array([[2, -1, 0], [0, 1, -3]], dtype)
    check("ScatterElements", opset, [floats(3, 4), indices, floats(2, 3, seed=1)], {"axis": axis}, tolerance=0)


def test_scatter():
    indices = np.array([[2, 1, 0]])
    check("Scatter", 9, [floats(3, 4), indices, floats(1, 3, seed=1)], {"axis": 0}, tolerance=0)


def _reductions(op_type):
    """Return pairs of opset and reduction: `add` and `mul` exist since version 16, `max` and `min` since 18."""
    return [
        (opset, reduction)
        for opset in opsets(op_type, 16)
        for reduction in ("none", "add", "mul", *(("max", "min") if opset >= 18 else ()))
    ]


@pytest.mark.parametrize(("opset", "reduction"), _reductions("ScatterElements"))
def test_scatter_elements_with_reduction(opset, reduction):
    indices = np.array([[2, 2, 2], [0, 2, 0]]) if reduction != "none" else np.array([[2, 1, 0]])
    inputs = [floats(3, 4), indices, floats(*indices.shape, seed=1)]
    check("ScatterElements", opset, inputs, {"axis": 1, "reduction": reduction}, tolerance=1e-6)


@pytest.mark.parametrize("indices", _ROWS)
@pytest.mark.parametrize("opset", opsets("ScatterND"))
def test_scatter_nd(opset, indices):
    updates = floats(*indices.shape[:-1], *(3, 4, 5)[indices.shape[-1] :], seed=1)
    check("ScatterND", opset, [floats(3, 4, 5), indices, updates], tolerance=0)


@pytest.mark.parametrize(("opset", "reduction"), _reductions("ScatterND"))
def test_scatter_nd_with_reduction(opset, reduction):
    indices = np.array([[1], [1], [2]]) if reduction != "none" else np.array([[1], [2], [0]])
    inputs = [floats(3, 4), indices, floats(3, 4, seed=1)]
    check("ScatterND", opset, inputs, {"reduction": reduction}, tolerance=1e-6)


@pytest.mark.parametrize("starts", [None, np.array([1, 3])])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1])
def test_tensor_scatter(axis, mode, starts):
    shape = [2, 5, 5, 4]
    shape[axis] = 2
    inputs = [floats(2, 5, 5, 4), floats(*shape, seed=1), starts]
    check("TensorScatter", 24, inputs, {"mode": mode, "axis": axis}, tolerance=0)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("opset", opsets("OneHot"))
def test_one_hot(opset, axis):
    depth = np.array(4) if opset == 28 else np.array([4], np.float32)  # onnx.reference accepts only integers
    indices, values = np.array([[0, 3, -4], [9, -5, 2]]), np.array([2, 5], np.float32)
    check("OneHot", opset, [indices, depth, values], {"axis": axis}, constant=[1], tolerance=0)


def test_one_hot_with_computed_depth_is_refused():
    inputs = [np.array([1]), np.array(3), np.array([0, 1])]
    assert reason("OneHot", 11, inputs) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


@pytest.mark.parametrize("depth", [np.array([np.nan], np.float32), np.array([2, 3])])
def test_depth_that_is_not_a_number_is_refused(depth):
    model = make("OneHot", 11, [np.array([1]), np.array(3), np.array([0, 1])], constant=[1])
    (verdict,) = convert(model, {"x1": depth}).verdicts
    assert verdict.reason is Reason.INVALID_NODE


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("opset", opsets("ReverseSequence"))
def test_reverse_sequence(opset, batch, time):
    lengths = np.array([4, 1, 2, 3])
    check("ReverseSequence", opset, [floats(4, 4, 3), lengths], {"batch_axis": batch, "time_axis": time}, tolerance=0)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("ScatterElements", [floats(3, 4), np.array([[0]]), floats(1, 1)], {"axis": 2}),
        ("ScatterElements", [floats(3, 4), np.array([[0]]), floats(1, 2)], {}),
        ("ScatterElements", [floats(3, 4), np.array([[0]]), floats(1, 1)], {"reduction": "average"}),
        ("ScatterND", [floats(3, 4), np.array([[0]]), floats(1, 5)], {}),
        ("GatherND", [floats(3, 4), np.array([[0]])], {"batch_dims": 2}),
    ],
)
def test_inconsistent_nodes_are_refused(op_type, inputs, attributes):
    try:
        result = reason(op_type, 18 if op_type != "GatherND" else 13, inputs, attributes)
    except Exception as error:  # noqa: BLE001  onnx's inference refuses it first
        assert "InferenceError" in type(error).__name__
    else:
        assert result in (Reason.INVALID_NODE, Reason.DYNAMIC_SHAPE)
