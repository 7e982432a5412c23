from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, Layout
from tests.ir.operations.shape_oracle import dimensions, flops, infer, onnx_dimensions, operand

_SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)


@given(_SHAPES, _SHAPES, st.booleans(), st.booleans())
def test_mat_mul_agrees_with_numpy(x, y, transpose_x, transpose_y):
    transpose_x, transpose_y = transpose_x and len(x) > 1, transpose_y and len(y) > 1
    left = np.zeros(x).swapaxes(-1, -2) if transpose_x else np.zeros(x)
    right = np.zeros(y).swapaxes(-1, -2) if transpose_y else np.zeros(y)
    given_ = {"transpose_x": transpose_x, "transpose_y": transpose_y}
    try:
        expected = np.matmul(left, right).shape
    except ValueError:
        with pytest.raises(InvalidModelError, match="MAT_MUL: "):
            dimensions("MAT_MUL", [x, y], **given_)
    else:
        assert dimensions("MAT_MUL", [x, y], **given_) == [expected]


def test_matrix_flops_by_hand():
    assert flops("MAT_MUL", [operand(5, 2, 3), operand(3, 4)]) == 2 * 5 * 2 * 4 * 3
    assert flops("MAT_MUL", [operand(3, 2), operand(3, 4)], transpose_x=True) == 2 * 2 * 4 * 3
    assert flops("FULLY_CONNECTED", [operand(2, 3), operand(4, 3), operand(4)]) == 2 * 4 * 3 * 2 + 8


def test_fully_connected_keeps_leading_axes():
    assert dimensions("FULLY_CONNECTED", [(2, 5, 3), (4, 3), (4,)]) == [(2, 5, 4)]


@given(st.data(), array_shapes(max_dims=3, max_side=5))
def test_slice_agrees_with_numpy(data, shape):
    bounds = data.draw(st.tuples(*[st.slices(size) for size in shape]))
    rows = [_normalized(bound, size) for bound, size in zip(bounds, shape, strict=True)]
    starts, ends, steps = zip(*rows, strict=True)
    axes = tuple(range(len(shape)))
    result = dimensions("SLICE", [shape], starts=starts, ends=ends, steps=steps, axes=axes)
    array = np.zeros(shape)
    assert result == [array[bounds].shape] == [array[tuple(map(slice, starts, ends, steps))].shape]


def _normalized(bound: slice, size: int) -> tuple[int, int, int]:
    start, end, step = bound.indices(size)
    return max(start, 0), end if end >= 0 else -(size + 1), step


@given(array_shapes(max_dims=4), array_shapes(min_dims=1, max_dims=2), st.data())
def test_gather_agrees_with_numpy(shape, indices, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    expected = np.take(np.zeros(shape), np.zeros(indices, np.int64), axis).shape
    (result,) = infer("GATHER", [operand(*shape), operand(*indices, dtype="int64")], axis=axis)
    assert result.dimensions == expected


@given(array_shapes(max_dims=4), st.data())
def test_reductions_agree_with_numpy(shape, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    keepdims = data.draw(st.booleans())
    expected = np.zeros(shape).sum(axis=axes, keepdims=keepdims).shape
    assert dimensions("REDUCE_SUM", [shape], axes=axes, keepdims=keepdims) == [expected]
    (indices,) = infer("ARG_MAX", [operand(*shape)], axis=axes[0], keepdims=keepdims)
    assert indices.dtype is DataType.INT64
    assert indices.dimensions == np.zeros(shape).sum(axis=axes[0], keepdims=keepdims).shape


@given(array_shapes(max_dims=4), st.data())
def test_movement_agrees_with_numpy(shape, data):
    array, axis = np.zeros(shape), data.draw(st.integers(0, len(shape) - 1))
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    assert dimensions("TRANSPOSE", [shape], perm=perm) == [array.transpose(perm).shape]
    assert dimensions("CONCAT", [shape, shape, shape], axis=axis) == [np.concatenate([array] * 3, axis).shape]
    assert dimensions("TILE", [shape], repeats=(2,) * len(shape)) == [np.tile(array, (2,) * len(shape)).shape]
    assert dimensions("EXPAND", [shape], shape=(3, *shape)) == [(3, *shape)]
    assert dimensions("RESHAPE", [shape], shape=(array.size, 1)) == [(array.size, 1)]


@settings(deadline=None)
@given(array_shapes(min_side=3, max_dims=3), st.data(), st.sampled_from(["constant", "reflect", "edge", "wrap"]))
def test_pad_agrees_with_onnx(shape, data, mode):
    pads = tuple(data.draw(st.lists(st.integers(-1, 0 if mode == "reflect" else 2), min_size=6, max_size=6)))
    pads = pads[: 2 * len(shape)]
    expected = onnx_dimensions("Pad", [shape, np.array(pads, np.int64)], mode=mode)
    assert dimensions("PAD", [shape], pads=pads, mode=mode) == expected


@pytest.mark.parametrize("k", [0, 1, 4])
def test_top_k_agrees_with_onnx(k: int):
    values, indices = infer("TOP_K", [operand(2, 4, 3)], k=k, axis=1)
    assert indices.dtype is DataType.INT64
    expected = onnx_dimensions("TopK", [(2, 4, 3), np.array([k], np.int64)], outputs=2, axis=1)
    assert [values.dimensions, indices.dimensions] == expected


def test_split_agrees_with_onnx():
    expected = onnx_dimensions("Split", [(2, 7), np.array([3, 0, 4], np.int64)], outputs=3, axis=1)
    assert dimensions("SPLIT", [(2, 7)], axis=1, split=(3, 0, 4)) == expected


@pytest.mark.parametrize("type_", ["RESIZE_NEAREST", "RESIZE_LINEAR"])
def test_resize_agrees_with_onnx(type_: str):
    scales = (1.0, 1.0, 2.5, 0.6)
    empty = np.array([], np.float32)
    expected = onnx_dimensions("Resize", [(1, 2, 5, 7), empty, np.array(scales, np.float32)])
    assert dimensions(type_, [(1, 2, 5, 7)], shape=expected[0], scales=scales) == expected


def test_resize_linear_flops_count_axes_that_change():
    assert flops("RESIZE_LINEAR", [operand(1, 2, 3, 3)], shape=(1, 2, 6, 3), scales=(1, 1, 2, 1)) == 3 * 36
    assert flops("REDUCE_MEAN", [operand(2, 3)], axes=(1,)) == 6 + 2


@pytest.mark.parametrize(("op_type", "type_"), [("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX")])
def test_softmax_keeps_dimensions(op_type: str, type_: str):
    assert dimensions(type_, [(2, 3)], axis=1) == onnx_dimensions(op_type, [(2, 3)], axis=1) == [(2, 3)]


def test_layer_normalization_broadcasts_scale_over_normalized_axes():
    assert dimensions("LAYER_NORMALIZATION", [(2, 3, 4), (3, 4), (4,)], axis=1) == [(2, 3, 4)]


def test_layouts_follow_the_axes():
    image = operand(1, 4, 5, 3, layout="NHWC")
    assert infer("CONCAT", [image, image], axis=3)[0].layout is Layout.NHWC
    assert infer("REDUCE_MEAN", [image], axes=(1, 2))[0].layout is Layout.NHWC
    assert infer("REDUCE_MEAN", [image], axes=(1, 2), keepdims=False)[0].layout is Layout.NCHW
    assert infer("RESHAPE", [image], shape=(1, 3, 4, 5))[0].layout is Layout.NCHW
    assert infer("TRANSPOSE", [image], perm=(0, 3, 1, 2))[0] == operand(1, 3, 4, 5)
    there = infer("TRANSPOSE", [operand(1, 3, 4, 5)], perm=(0, 2, 3, 1), output_layout="NHWC")
    assert there == (image,)


_ERRORS = [
    ("MAT_MUL", [(2, 3), (4, 5)], {}, "have inner sizes 3 and 4"),
    ("MAT_MUL", [(3,), (3, 5)], {"transpose_x": True}, "transpose_x is True on x of rank 1"),
    ("MAT_MUL", [(3,), ()], {}, "y has rank 0"),
    ("MAT_MUL", [(2, 3, 3), (4, 3, 3)], {}, "do not broadcast"),
    ("FULLY_CONNECTED", [(2, 3), (4, 2)], {}, "has 3 elements, expected 2"),
    ("FULLY_CONNECTED", [(2, 3), (3,)], {}, "weight has dimensions"),
    ("RESHAPE", [(2, 3)], {"shape": (4, 2)}, "holds 8 elements, expected 6"),
    ("RESHAPE", [(2, 3)], {"shape": (-1, 2)}, "shape is"),
    ("TRANSPOSE", [(2, 3)], {"perm": (0, 0)}, r"perm is \[0, 0\], expected a permutation of the axes 0 to 1"),
    ("TRANSPOSE", [(2, 3)], {"perm": (1, 0), "output_layout": "NHWC"}, "expected rank 4"),
    ("EXPAND", [(2, 3)], {"shape": (2, 1)}, "expected a shape"),
    ("TILE", [(2, 3)], {"repeats": (2,)}, r"repeats has 1 values \[2\], expected 2"),
    ("CONCAT", [(2, 3), (2, 4)], {"axis": 0}, "input 1 has dimensions"),
    ("CONCAT", [(2, 3)], {"axis": -1}, "axis is -1, expected one of 0 to 1"),
    ("SPLIT", [(2, 3)], {"axis": 1, "split": (1, 1)}, "with the sum 2, expected 3"),
    ("SLICE", [(4,)], {"starts": (0,), "ends": (5,), "axes": (0,), "steps": (1,)}, "is 0:5:1, expected start and end"),
    ("SLICE", [(4,)], {"starts": (3,), "ends": (-1,), "axes": (0,), "steps": (-1,)}, "or end -5"),
    ("SLICE", [(4,)], {"starts": (0,), "ends": (4,), "axes": (0,), "steps": (0,)}, "step along axis 0 is 0"),
    ("SLICE", [(4,)], {"starts": (0,), "ends": (4,), "axes": (0,), "steps": ()}, "steps has 0 values"),
    ("SLICE", [(4,)], {"starts": (0, 0), "ends": (4, 4), "axes": (0, 0), "steps": (1, 1)}, "no duplicates"),
    ("PAD", [(4,)], {"pads": (-3, -2)}, "crop more than the 4 elements"),
    ("PAD", [(4,)], {"pads": (4, 0), "mode": "reflect"}, "expected at most 3 in mode 'reflect'"),
    ("PAD", [(0,)], {"pads": (1, 0), "mode": "edge"}, "expected at most 0 in mode 'edge'"),
    ("PAD", [(4,)], {"pads": (1,)}, "pads has 1 values"),
    ("REDUCE_SUM", [(2, 3)], {"axes": ()}, "expected at least one"),
    ("REDUCE_SUM", [(2, 3)], {"axes": (1, 0)}, "ascending"),
    ("REDUCE_SUM", [(2, 3)], {"axes": (2,)}, "axis is 2"),
    ("ARG_MAX", [(0, 3)], {"axis": 0}, "no element along axis 0"),
    ("TOP_K", [(3,)], {"axis": 0, "k": 4}, "k is 4, expected 0 to 3"),
    ("SOFTMAX", [(3,)], {"axis": 1}, "axis is 1"),
    ("CUM_SUM", [(3,)], {"axis": -1}, "axis is -1"),
    ("LAYER_NORMALIZATION", [(2, 3), (2,)], {"axis": 1}, "do not broadcast"),
    ("RESIZE_LINEAR", [(2, 3)], {"shape": (2, 9), "scales": (1.0, 2.0)}, "axis 1 is resized from 3 to 9"),
    ("RESIZE_NEAREST", [(2, 3)], {"shape": (2,), "scales": (1.0, 2.0)}, "shape has 1 values"),
]


@pytest.mark.parametrize(("type_", "shapes", "attributes", "message"), _ERRORS)
def test_ill_formed_is_refused(type_, shapes, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        dimensions(type_, shapes, **attributes)


def test_gather_elements_indices_stay_within_the_other_axes():
    assert infer("GATHER_ELEMENTS", [operand(2, 3), operand(2, 9, dtype="int64")], axis=1)[0] == operand(2, 9)
    with pytest.raises(InvalidModelError, match="indices has 3 elements along axis 0, expected at most 2"):
        infer("GATHER_ELEMENTS", [operand(2, 3), operand(3, 3, dtype="int64")], axis=1)
    with pytest.raises(InvalidModelError, match="indices has rank 1, expected 2"):
        infer("GATHER_ELEMENTS", [operand(2, 3), operand(3, dtype="int64")], axis=1)
