import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.converters.movement import resolve_shape
from nnadapter.drivers import Reason
from nnadapter.onnx import Refusal
from tests.converters.single_node import check, floats, opsets, reason


def _integers(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("shape", [(6, 4), (-1,), (0, -1), (2, 0, 2, 2), (4, 3, -1)])
@pytest.mark.parametrize("opset", opsets("Reshape"))
def test_reshape(opset, shape):
    check("Reshape", opset, [floats(2, 3, 4), _integers(*shape)], constant=[1], tolerance=0)


@pytest.mark.parametrize("opset", opsets("Reshape", 14))
def test_reshape_with_allowzero(opset):
    check("Reshape", opset, [floats(0, 3), _integers(3, 0)], {"allowzero": 1}, constant=[1], tolerance=0)


def test_reshape_to_and_from_a_scalar():
    check("Reshape", 13, [floats(1, 1), _integers()], constant=[1], tolerance=0)
    check("Reshape", 13, [floats(), _integers(1, -1)], constant=[1], tolerance=0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_resolved_shapes_equal_numpy(dimensions, data):
    target = data.draw(st.permutations(dimensions))
    shape = [0 if axis < len(dimensions) and dimensions[axis] == size else size for axis, size in enumerate(target)]
    shape[data.draw(st.integers(0, len(shape) - 1))] = -1
    assert resolve_shape(dimensions, shape, allowzero=False) == tuple(target)


@pytest.mark.parametrize("shape", [(5, -1), (-1, -1), (2, 3), (2, 2, 0), (-2, 12)])
def test_misfit_shapes_are_refused(shape):
    with pytest.raises(Refusal) as refused:
        resolve_shape((4, 3), (*shape,), allowzero=False)
    assert refused.value.verdict.reason is Reason.INVALID_NODE


def test_reshape_to_computed_shape_is_refused():
    assert reason("Reshape", 13, [floats(2, 3), _integers(3, 2)]) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
@pytest.mark.parametrize("opset", opsets("Flatten"))
def test_flatten(opset, axis):
    if axis < 0 and opset < 11:
        pytest.skip("axes count from the front")
    check("Flatten", opset, [floats(2, 3, 4)], {"axis": axis}, tolerance=0)


@pytest.mark.parametrize("axes", [None, [0], [0, 2], [-2]])
@pytest.mark.parametrize("opset", opsets("Squeeze"))
def test_squeeze(opset, axes):
    if opset < 11 and axes == [-2]:
        pytest.skip("axes count from the front")
    _with_axes("Squeeze", opset, floats(1, 3, 1, 4), axes)


@pytest.mark.parametrize("axes", [[0], [3, 0], [-1]])
@pytest.mark.parametrize("opset", opsets("Unsqueeze"))
def test_unsqueeze(opset, axes):
    if opset < 11 and axes == [-1]:
        pytest.skip("axes count from the front")
    _with_axes("Unsqueeze", opset, floats(3, 4), axes)


def _with_axes(op_type, opset, x, axes):
    if opset < 13:
        check(op_type, opset, [x], {} if axes is None else {"axes": axes}, tolerance=0)
    else:
        inputs = [x] if axes is None else [x, _integers(*axes)]
        check(op_type, opset, inputs, constant=[1][: len(inputs) - 1], tolerance=0)


@pytest.mark.parametrize("attributes", [{}, {"perm": [1, 2, 0]}, {"perm": [0, 1, 2]}])
@pytest.mark.parametrize("opset", opsets("Transpose"))
def test_transpose(opset, attributes):
    check("Transpose", opset, [floats(2, 3, 4)], attributes, tolerance=0)


@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (5, 1, 3, 1), (1,)])
@pytest.mark.parametrize("opset", opsets("Expand"))
def test_expand(opset, shape):
    check("Expand", opset, [floats(3, 1), _integers(*shape)], constant=[1], tolerance=0)


@pytest.mark.parametrize("opset", opsets("Tile"))
def test_tile(opset):
    check("Tile", opset, [floats(2, 3), _integers(2, 3)], constant=[1], tolerance=0)


@pytest.mark.parametrize("mode", [None, "DCR", "CRD"])
@pytest.mark.parametrize("opset", opsets("DepthToSpace"))
def test_depth_to_space(opset, mode):
    attributes = {} if mode is None or opset < 11 else {"mode": mode}
    check("DepthToSpace", opset, [floats(2, 8, 3, 4)], {"blocksize": 2, **attributes}, tolerance=0)


@pytest.mark.parametrize("opset", opsets("SpaceToDepth"))
def test_space_to_depth(opset):
    check("SpaceToDepth", opset, [floats(2, 3, 4, 6)], {"blocksize": 2}, tolerance=0)


def test_space_to_depth_with_the_channel_first_undoes_depth_to_space():
    x = floats(2, 3, 4, 6)
    blocks = x.reshape(2, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 12, 2, 3)
    check("SpaceToDepth", 28, [x], {"blocksize": 2, "mode": "CRD"}, tolerance=0, oracle=[blocks])
