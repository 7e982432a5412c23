from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir import Layout
from tests.ir.operations.shape_oracle import dimensions, flops, infer, onnx_dimensions, operand

_PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
_PADS = st.tuples(*[st.integers(0, 2)] * 4)
_SIZE = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None)
@given(size=_SIZE, kernel=_PAIR, strides=_PAIR, dilations=_PAIR, pads=_PADS, group=st.sampled_from([1, 2, 4]))
def test_convolution_agrees_with_onnx(size, kernel, strides, dilations, pads, group):
    shapes = [(2, 4, *size), (8, 4 // group, *kernel)]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(size[0] + pads[0] + pads[2] >= extents[0] and size[1] + pads[1] + pads[3] >= extents[1])
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    assert dimensions("CONV_2D", shapes, **attributes) == onnx_dimensions("Conv", shapes, **attributes)


@settings(deadline=None)
@given(size=_SIZE, kernel=_PAIR, strides=_PAIR, dilations=_PAIR, pads=_PADS, group=st.sampled_from([1, 2]))
def test_transposed_convolution_agrees_with_onnx(size, kernel, strides, dilations, pads, group):
    shapes = [(1, 4, *size), (4, 3, *kernel)]
    padding = tuple(max(pair) - 1 for pair in zip(strides, dilations, strict=True))
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": group, "output_padding": padding}
    try:
        result = dimensions("CONV_2D_TRANSPOSE", shapes, **attributes)
    except InvalidModelError as error:
        assert "pads are too large" in str(error)
    else:
        assert result == onnx_dimensions("ConvTranspose", shapes, **attributes)


@settings(deadline=None)
@given(size=_SIZE, kernel=_PAIR, strides=_PAIR, dilations=_PAIR, pads=_PADS, ceil=st.booleans())
@pytest.mark.parametrize(("type_", "op_type"), [("MAX_POOL_2D", "MaxPool"), ("AVERAGE_POOL_2D", "AveragePool")])
def test_pooling_agrees_with_onnx(type_, op_type, size, kernel, strides, dilations, pads, ceil):
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    try:
        result = dimensions(type_, [(1, 3, *size)], ceil_mode=ceil, **attributes)
    except InvalidModelError as error:
        assert "only padding" in str(error) or ("expected at least" in str(error) and _misfits(attributes, size))
    else:
        assert result == onnx_dimensions(op_type, [(1, 3, *size)], ceil_mode=int(ceil), **attributes)


def _misfits(attributes, size) -> bool:
    pads = attributes["pads"]
    padded = (size[0] + pads[0] + pads[2], size[1] + pads[1] + pads[3])
    rows = zip(attributes["kernel_shape"], attributes["dilations"], padded, strict=True)
    return any((kernel - 1) * dilation + 1 > have for kernel, dilation, have in rows)


def test_ceil_mode_includes_a_partial_window():
    assert dimensions("MAX_POOL_2D", [(1, 1, 2, 5)], kernel_shape=(3, 2), strides=(2, 2), ceil_mode=True) == [
        (1, 1, 1, 3)
    ]


_IMAGE_OPERATIONS = [
    ("CONV_2D", [(6, 4, 3, 2)], {"strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ("CONV_2D_TRANSPOSE", [(4, 6, 3, 2)], {"strides": (2, 1), "pads": (1, 0, 0, 1)}),
    ("MAX_POOL_2D", [], {"kernel_shape": (3, 2), "strides": (2, 1)}),
    ("AVERAGE_POOL_2D", [], {"kernel_shape": (3, 2), "ceil_mode": True}),
    ("BATCH_NORMALIZATION", [(4,)] * 4, {}),
    ("INSTANCE_NORMALIZATION", [(4,)] * 2, {}),
    ("LOCAL_RESPONSE_NORMALIZATION", [], {"size": 3}),
    ("DEPTH_TO_SPACE", [], {"block_size": 2}),
    ("SPACE_TO_DEPTH", [], {"block_size": 2}),
]


@pytest.mark.parametrize(("type_", "others", "attributes"), _IMAGE_OPERATIONS)
def test_nhwc_result_is_the_transposed_nchw_result(type_, others, attributes):
    remaining = [operand(*shape) for shape in others]
    (plain,) = infer(type_, [operand(2, 4, 6, 8), *remaining], **attributes)
    (last,) = infer(type_, [operand(2, 6, 8, 4, layout="NHWC"), *remaining], **attributes)
    batch, channels, height, width = plain.dimensions
    assert last.layout is Layout.NHWC
    assert last.dimensions == (batch, height, width, channels)


@pytest.mark.parametrize(("type_", "op_type"), [("DEPTH_TO_SPACE", "DepthToSpace"), ("SPACE_TO_DEPTH", "SpaceToDepth")])
def test_pixel_shuffles_agree_with_onnx(type_: str, op_type: str):
    shape = (2, 8, 4, 6)
    assert dimensions(type_, [shape], block_size=2) == onnx_dimensions(op_type, [shape], blocksize=2)


_IMAGE = (1, 4, 5, 5)
_ERRORS = [
    ("CONV_2D", [_IMAGE, (8, 3, 1, 1)], {}, "input has 4 channels, expected 3"),
    ("CONV_2D", [_IMAGE, (9, 2, 1, 1)], {"group": 2}, "group is 2, expected a divisor of 9 output channels"),
    ("CONV_2D", [_IMAGE, (8, 4, 1, 1)], {"group": 0}, "group is 0"),
    ("CONV_2D", [_IMAGE, (8, 4, 1, 1), (7,)], {}, r"bias has dimensions \[7\], expected \[8\]"),
    ("CONV_2D", [_IMAGE, (8, 4, 7, 1)], {}, "height with padding is 5, expected at least 7"),
    ("CONV_2D", [_IMAGE, (8, 4, 1, 3)], {"dilations": (1, 3)}, "width with padding is 5, expected at least 7"),
    ("CONV_2D", [_IMAGE, (8, 4, 1, 1)], {"strides": (0, 1)}, r"strides is \[0, 1\], expected every value"),
    ("CONV_2D", [_IMAGE, (8, 4, 1, 1)], {"pads": (0, -1, 0, 0)}, "pads is"),
    ("CONV_2D", [_IMAGE, (8, 4, 1)], {}, "filter has dimensions"),
    ("CONV_2D", [(1, 4, 5), (8, 4, 1, 1)], {}, r"float32\[1, 4, 5\] has rank 3, expected 4"),
    ("CONV_2D_TRANSPOSE", [_IMAGE, (3, 2, 1, 1)], {}, "input has 4 channels, expected 3"),
    ("CONV_2D_TRANSPOSE", [_IMAGE, (4, 2, 1, 1)], {"output_padding": (1, 0)}, "output_padding is"),
    ("CONV_2D_TRANSPOSE", [_IMAGE, (4, 2, 1, 1)], {"pads": (3, 0, 3, 0)}, "output height is -1"),
    ("MAX_POOL_2D", [_IMAGE], {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, "pads along the height are 2 and 0"),
    ("MAX_POOL_2D", [_IMAGE], {"kernel_shape": (6, 2)}, "expected at least 6"),
    ("MAX_POOL_2D", [_IMAGE], {"kernel_shape": (0, 2)}, "kernel_shape is"),
    ("BATCH_NORMALIZATION", [_IMAGE, (4,), (4,), (5,), (4,)], {}, r"mean has dimensions \[5\], expected \[4\]"),
    ("INSTANCE_NORMALIZATION", [_IMAGE, (4,), (1,)], {}, "bias has dimensions"),
    ("LOCAL_RESPONSE_NORMALIZATION", [_IMAGE], {"size": 0}, "size is"),
    ("DEPTH_TO_SPACE", [_IMAGE], {"block_size": 3}, "expected a multiple of block_size² = 9"),
    ("SPACE_TO_DEPTH", [_IMAGE], {"block_size": 2}, "expected multiples of block_size 2"),
    ("SPACE_TO_DEPTH", [_IMAGE], {"block_size": 0}, "block_size is 0"),
]


@pytest.mark.parametrize(("type_", "shapes", "attributes", "message"), _ERRORS)
def test_ill_formed_is_refused(type_, shapes, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        dimensions(type_, shapes, **attributes)


def test_convolution_flops_by_hand():
    image, weights = operand(1, 3, 8, 8), operand(16, 3, 3, 3)
    assert flops("CONV_2D", [image, weights], pads=(1, 1, 1, 1)) == 2 * 16 * 64 * 27
    assert flops("CONV_2D", [image, weights, operand(16)], pads=(1, 1, 1, 1)) == 16 * 64 * (2 * 27 + 1)


def test_depthwise_convolution_flops_by_hand():
    assert flops("CONV_2D", [operand(1, 8, 4, 4), operand(8, 1, 3, 3)], group=8) == 2 * 8 * 4 * 9


def test_transposed_convolution_flops_count_input_pixels():
    image, weights = operand(1, 4, 5, 5), operand(4, 2, 3, 3)
    assert flops("CONV_2D_TRANSPOSE", [image, weights], strides=(2, 2)) == 2 * 100 * 2 * 9


def test_pooling_flops_count_window_elements():
    assert flops("MAX_POOL_2D", [operand(1, 2, 4, 4)], kernel_shape=(2, 2), strides=(2, 2)) == 2 * 4 * 4


def test_normalization_flops():
    assert flops("BATCH_NORMALIZATION", [operand(1, 4, 2, 2), *[operand(4)] * 4]) == 2 * 16
    assert flops("LOCAL_RESPONSE_NORMALIZATION", [operand(1, 4, 2, 2)], size=5) == 10 * 16
