"""Convolutions of images. Filters are in ONNX's order whatever the layout of the image."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_vector
from nnadapter.ir.operations.windows import FUSE_ATTRIBUTES, fusable, fused, image_like, image_size, window_count
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_ROLES = (
    Role("input", FLOATING),
    Role("filter", FLOATING, same_dtype_as="input"),
    Role("bias", FLOATING, optional=True, same_dtype_as="input"),
)
_ATTRIBUTES = (
    Attribute("strides", AttributeKind.INTS, (1, 1), length=2),
    # pads = (top, left, bottom, right)
    Attribute("pads", AttributeKind.INTS, (0, 0, 0, 0), length=4),
    Attribute("dilations", AttributeKind.INTS, (1, 1), length=2),
    Attribute("group", AttributeKind.INT, 1),
)


def _filter(types: Types) -> tuple[int, int, int, int]:
    dimensions = present(types, 1).dimensions
    if len(dimensions) != 4 or 0 in dimensions:
        raise InvalidModelError(f"filter has dimensions {list(dimensions)}, expected four, none of them 0")
    outer, inner, height, width = dimensions
    return outer, inner, height, width


def _check(types: Types, attributes: Attributes, output_channels: int) -> None:
    check_at_least("strides", integers(attributes, "strides"), 1)
    check_at_least("dilations", integers(attributes, "dilations"), 1)
    check_at_least("pads", integers(attributes, "pads"), 0)
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        check_vector("bias", bias, output_channels)


def _group(attributes: Attributes, name: str, channels: int) -> int:
    group = integer(attributes, "group")
    if group < 1 or channels % group:
        raise InvalidModelError(f"group is {group}, expected a divisor of {channels} {name} channels")
    return group


def _convolution(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    output_channels, per_group, kernel_height, kernel_width = _filter(types)
    image = present(types, 0)
    _, channels, height, width = image_size(image)
    group = _group(attributes, "output", output_channels)
    if channels != per_group * group:
        raise InvalidModelError(
            f"input has {channels} channels, expected {per_group * group}: "
            f"{per_group} of the filter times group {group}"
        )
    _check(types, attributes, output_channels)
    down, across = integers(attributes, "strides")
    dilation_down, dilation_across = integers(attributes, "dilations")
    top, left, bottom, right = integers(attributes, "pads")
    return (
        image_like(
            image,
            output_channels,
            window_count("height", height + top + bottom, kernel_height, down, dilation_down),
            window_count("width", width + left + right, kernel_width, across, dilation_across),
        ),
    )


def _transposed(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    filter_channels, per_group, kernel_height, kernel_width = _filter(types)
    image = present(types, 0)
    _, channels, height, width = image_size(image)
    group = _group(attributes, "input", channels)
    if channels != filter_channels:
        raise InvalidModelError(f"input has {channels} channels, expected {filter_channels} as the filter's first axis")
    _check(types, attributes, per_group * group)
    down, across = integers(attributes, "strides")
    dilation_down, dilation_across = integers(attributes, "dilations")
    top, left, bottom, right = integers(attributes, "pads")
    more_down, more_across = _output_padding(attributes)
    return (
        image_like(
            image,
            per_group * group,
            _spread("height", height, kernel_height, down, dilation_down, more_down - top - bottom),
            _spread("width", width, kernel_width, across, dilation_across, more_across - left - right),
        ),
    )


def _output_padding(attributes: Attributes) -> tuple[int, ...]:
    padding = integers(attributes, "output_padding")
    check_at_least("output_padding", padding, 0)
    limits = tuple(map(max, integers(attributes, "strides"), integers(attributes, "dilations")))
    if any(value >= limit for value, limit in zip(padding, limits, strict=True)):
        raise InvalidModelError(
            f"output_padding is {list(padding)}, expected less than the larger of stride and dilation, {list(limits)}"
        )
    return padding


def _spread(name: str, size: int, kernel: int, stride: int, dilation: int, extra: int) -> int:
    result = stride * (size - 1) + (kernel - 1) * dilation + 1 + extra
    if size < 1 or result < 1:
        raise InvalidModelError(
            f"output {name} is {result} for an input of {size}, expected at least 1: pads too large"
        )
    return result


def _bias_flops(types: Types, output: OperandType) -> int:
    return output.size if len(types) > 2 and types[2] is not None else 0


def _convolution_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    _, per_group, kernel_height, kernel_width = present(types, 1).dimensions
    products = outputs[0].size * per_group * kernel_height * kernel_width
    return 2 * products + _bias_flops(types, outputs[0])


def _transposed_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    _, per_group, kernel_height, kernel_width = present(types, 1).dimensions
    products = present(types, 0).size * per_group * kernel_height * kernel_width
    return 2 * products + _bias_flops(types, outputs[0])


ROWS: tuple[OperationSchema, ...] = (
    row(
        "CONV_2D",
        _ROLES,
        fusable(_convolution),
        fused(_convolution_flops),
        "NNAPI CONV_2D, GROUPED_CONV_2D, DEPTHWISE_CONV_2D; ONNX Conv-11; filter [O, C/group, kH, kW]",
        attributes=(*_ATTRIBUTES, *FUSE_ATTRIBUTES),
        ranks=(4, 4),
    ),
    row(
        "CONV_2D_TRANSPOSE",
        _ROLES,
        fusable(_transposed),
        fused(_transposed_flops),
        "NNAPI TRANSPOSE_CONV_2D; ONNX ConvTranspose-11; filter [C, O/group, kH, kW]",
        attributes=(*_ATTRIBUTES, Attribute("output_padding", AttributeKind.INTS, (0, 0), length=2), *FUSE_ATTRIBUTES),
        ranks=(4, 4),
    ),
)
"""The rows of this family."""
