from __future__ import annotations

import pytest

from nnadapter.errors import InvalidModelError
from tests.ir.operations.shape_oracle import dimensions, flops, infer, onnx_dimensions, operand

_VOLUME = (2, 4, 7, 8, 9)
_WINDOWS = [
    {},
    {"strides": (2, 1, 3), "pads": (1, 0, 1, 0, 1, 1)},
    {"dilations": (2, 2, 1), "pads": (1, 1, 0, 1, 0, 1)},
]


@pytest.mark.parametrize("attributes", _WINDOWS)
def test_windows_over_volumes_agree_with_onnx(attributes):
    weight, back = (6, 2, 3, 2, 3), (4, 3, 3, 2, 3)
    assert dimensions("CONV_3D", [_VOLUME, weight], group=2, **attributes) == onnx_dimensions(
        "Conv", [_VOLUME, weight], group=2, **attributes
    )
    assert dimensions("CONV_3D_TRANSPOSE", [_VOLUME, back], group=2, **attributes) == onnx_dimensions(
        "ConvTranspose", [_VOLUME, back], group=2, **attributes
    )
    for type_, op_type in (("MAX_POOL_3D", "MaxPool"), ("AVERAGE_POOL_3D", "AveragePool"), ("LP_POOL_3D", "LpPool")):
        for ceil in (False, True):
            result = dimensions(type_, [_VOLUME], kernel_shape=(3, 2, 3), ceil_mode=ceil, **attributes)
            given = {"kernel_shape": (3, 2, 3), "ceil_mode": int(ceil), **attributes}
            assert result == onnx_dimensions(op_type, [_VOLUME], **given)


def test_indices_are_as_many_as_values():
    values, indices = infer("MAX_POOL_2D_WITH_INDICES", [operand(1, 2, 6, 6)], kernel_shape=(2, 2), strides=(2, 2))
    assert values.dimensions == indices.dimensions == (1, 2, 3, 3)
    assert indices.dtype.value == "int64"


_COLUMNS = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
_ERRORS = [
    ("CONV_3D", [_VOLUME, (6, 4, 3, 3)], {}, "filter has dimensions"),
    ("CONV_3D", [_VOLUME, (6, 3, 1, 1, 1)], {}, "input has 4 channels, expected 3"),
    ("CONV_3D", [_VOLUME, (5, 2, 1, 1, 1)], {"group": 2}, "group is 2, expected a divisor of 5 output channels"),
    ("CONV_3D", [_VOLUME, (6, 4, 8, 1, 1)], {}, "depth with padding is 7, expected at least 8"),
    ("CONV_3D", [_VOLUME, (6, 4, 1, 1, 1), (4,)], {}, r"bias has dimensions \[4\], expected \[6\]"),
    ("CONV_3D_TRANSPOSE", [_VOLUME, (3, 2, 1, 1, 1)], {}, "input has 4 channels, expected 3"),
    ("CONV_3D_TRANSPOSE", [_VOLUME, (4, 2, 1, 1, 1)], {"output_padding": (0, 1, 0)}, "output_padding is"),
    ("CONV_3D_TRANSPOSE", [_VOLUME, (4, 2, 1, 1, 1)], {"pads": (4, 0, 0, 3, 0, 0)}, "output depth is 0"),
    ("MAX_POOL_3D", [_VOLUME], {"kernel_shape": (2, 2, 2), "pads": (0, 0, 2, 0, 0, 0)}, "pads along the width"),
    ("MAX_POOL_3D", [_VOLUME], {"kernel_shape": (8, 2, 2)}, "expected at least 8"),
    ("MAX_POOL_3D", [(1, 2, 3, 4)], {"kernel_shape": (1, 1, 1)}, "has rank 4, expected 5"),
    ("LP_POOL_2D", [(1, 2, 3, 4)], {"kernel_shape": (1, 1), "p": 0}, "p is 0"),
    ("COL_TO_IM", [(1, 9, 4)], {"image_shape": (3, 3), "kernel_shape": (2, 2), **_COLUMNS}, "input has 9 rows"),
    ("COL_TO_IM", [(1, 8, 5)], {"image_shape": (3, 3), "kernel_shape": (2, 2), **_COLUMNS}, "input has 5 columns"),
    ("COL_TO_IM", [(1, 8, 4)], {"image_shape": (3, 3), "kernel_shape": (2,), **_COLUMNS}, "kernel_shape has 1"),
]


@pytest.mark.parametrize(("type_", "shapes", "attributes", "message"), _ERRORS)
def test_ill_formed_is_refused(type_, shapes, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        dimensions(type_, shapes, **attributes)


def test_unpooling_needs_an_index_for_each_element():
    inputs = [operand(1, 2, 3, 3), operand(1, 2, 3, 2, dtype="int64")]
    with pytest.raises(InvalidModelError, match="indices has dimensions"):
        infer("MAX_UNPOOL_2D", inputs, output_shape=(6, 6))


def test_images_with_their_channels_last_are_refused():
    with pytest.raises(InvalidModelError, match="input has layout NHWC"):
        infer("LP_POOL_2D", [operand(1, 4, 4, 2, layout="NHWC")], kernel_shape=(2, 2))


def test_flops_by_hand():
    volume, weight = operand(1, 3, 4, 4, 4), operand(5, 3, 2, 2, 2)
    assert flops("CONV_3D", [volume, weight]) == 2 * 5 * 27 * 24
    assert flops("CONV_3D", [volume, weight, operand(5)]) == 5 * 27 * (2 * 24 + 1)
    assert flops("CONV_3D_TRANSPOSE", [volume, operand(3, 5, 2, 2, 2)]) == 2 * 3 * 64 * 40
    assert flops("MAX_POOL_3D", [volume], kernel_shape=(2, 2, 2), strides=(2, 2, 2)) == 3 * 8 * 8
    assert flops("LP_POOL_3D", [volume], kernel_shape=(2, 2, 2), strides=(2, 2, 2)) == 3 * 3 * 8 * 8
