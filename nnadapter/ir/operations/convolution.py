"""Convolutions, with filters in ONNX's order for every layout.

Volumes are [N, C, D, H, W]; triples are (depth, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import Row, check_at_least, check_dimensions, check_onnx_order, check_vector, family
from nnadapter.ir.operations.windows import (
    AXES,
    FUSED,
    check_windows,
    fusable,
    fused,
    image_like,
    image_size,
    moves,
    window_counts,
)

row = family(cost="convolution")
Ints = Sequence[int]


def _check_filter(weight: OperandType, rank: int) -> None:
    if weight.rank != rank or 0 in weight.dimensions:
        count = {4: "four", 5: "five"}[rank]
        raise InvalidModelError(f"filter has dimensions {list(weight.dimensions)}, expected {count}, none of them 0")


def _check_group(group: int, name: str, channels: int) -> None:
    if group < 1 or channels % group:
        raise InvalidModelError(f"group is {group}, expected a divisor of {channels} {name} channels")


def _convolution(
    image: OperandType,
    weight: OperandType,
    bias: OperandType | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    group: int,
) -> OperandType:
    _check_filter(weight, image.rank)
    outputs, per_group, *kernel = weight.dimensions
    _, channels, *sizes = image_size(image)
    _check_group(group, "output", outputs)
    if channels != per_group * group:
        raise InvalidModelError(
            f"input has {channels} channels, expected {per_group * group}: "
            f"{per_group} of the filter times group {group}"
        )
    check_windows(pads, strides=strides, dilations=dilations)
    check_vector("bias", bias, outputs)
    return image_like(image, outputs, *window_counts(AXES[-len(sizes) :], sizes, kernel, strides, pads, dilations))


def _transposed(
    image: OperandType,
    weight: OperandType,
    bias: OperandType | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    group: int,
    output_padding: Ints,
) -> OperandType:
    _check_filter(weight, image.rank)
    filter_channels, per_group, *kernel = weight.dimensions
    _, channels, *sizes = image_size(image)
    _check_group(group, "input", channels)
    if channels != filter_channels:
        raise InvalidModelError(f"input has {channels} channels, expected {filter_channels} as the filter's first axis")
    check_windows(pads, strides=strides, dilations=dilations)
    check_vector("bias", bias, per_group * group)
    check_at_least(0, output_padding=output_padding)
    limits = list(map(max, strides, dilations))
    if any(value >= limit for value, limit in zip(output_padding, limits, strict=True)):
        raise InvalidModelError(
            f"output_padding is {list(output_padding)}, expected less than the larger of stride and dilation, {limits}"
        )
    rank = len(sizes)
    extra = [more - pads[axis] - pads[axis + rank] for axis, more in enumerate(output_padding)]
    return image_like(image, per_group * group, *map(_spread, AXES[-rank:], sizes, kernel, strides, dilations, extra))


def _spread(name: str, size: int, kernel: int, stride: int, dilation: int, extra: int) -> int:
    result = stride * (size - 1) + (kernel - 1) * dilation + 1 + extra
    if size < 1 or result < 1:
        raise InvalidModelError(
            f"output {name} is {result} for an input of {size}, expected at least 1; the pads are too large"
        )
    return result


def _deformable(
    first: OperandType,
    weight: OperandType,
    offset: OperandType,
    bias: OperandType | None = None,
    mask: OperandType | None = None,
    *,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    group: int,
    offset_group: int,
) -> OperandType:
    check_onnx_order(first)
    _check_filter(weight, 4)
    batch, channels, *image = first.dimensions
    outputs, per_group, *kernel = weight.dimensions
    if group < 1 or outputs % group or channels != per_group * group:
        raise InvalidModelError(
            f"group is {group} for {channels} input, {outputs} output and {per_group} filter channels, expected a "
            "divisor of the output channels that gives the input channels when multiplied by the filter channels"
        )
    if offset_group < 1 or channels % offset_group:
        raise InvalidModelError(f"offset_group is {offset_group}, expected a divisor of {channels} channels")
    check_windows(pads, strides=strides, dilations=dilations)
    sizes = window_counts(AXES[-2:], image, kernel, strides, pads, dilations)
    taps = offset_group * prod(kernel)
    check_dimensions("offset", offset, (batch, 2 * taps, *sizes))
    check_vector("bias", bias, outputs)
    check_dimensions("mask", mask, (batch, taps, *sizes))
    return OperandType(first.dtype, (batch, outputs, *sizes))


def _convolution_flops(
    outputs: Sequence[OperandType],
    image: OperandType,
    weight: OperandType,
    bias: OperandType | None = None,
    *,
    transposed: bool = False,
    **attributes: object,
) -> int:
    positions = image if transposed else outputs[0]
    return 2 * positions.size * prod(weight.dimensions[1:]) + (0 if bias is None else outputs[0].size)


_transposed_flops = partial(_convolution_flops, transposed=True)


def _deformable_flops(
    outputs: Sequence[OperandType],
    first: OperandType,
    weight: OperandType,
    offset: OperandType,
    bias: OperandType | None = None,
    *others: OperandType | None,
    **attributes: object,
) -> int:
    positions = outputs[0].dimensions[0] * prod(outputs[0].dimensions[2:])
    sampled = positions * first.dimensions[1] * prod(weight.dimensions[2:])
    return _convolution_flops(outputs, first, weight, bias) + 8 * sampled


_INPUTS = "filter: float as input, bias?: float as input"

ROWS: tuple[Row, ...] = (
    row(
        f"CONV_2D(input[4]: float, {_INPUTS}; {moves(2)}, group: int = 1, {FUSED})",
        fusable(_convolution),
        fused(_convolution_flops),
        "NNAPI CONV_2D, GROUPED_CONV_2D, DEPTHWISE_CONV_2D; ONNX Conv-11; filter [O, C/group, kH, kW]",
        quantization="product",
    ),
    row(
        f"CONV_2D_TRANSPOSE(input[4]: float, {_INPUTS}; {moves(2)}, group: int = 1, output_padding: ints[2] = 0 0, "
        f"{FUSED})",
        fusable(_transposed),
        fused(_transposed_flops),
        "NNAPI TRANSPOSE_CONV_2D; ONNX ConvTranspose-11; filter [C, O/group, kH, kW]",
        quantization="product",
    ),
    row(
        f"CONV_3D(input[5]: float, {_INPUTS}; {moves(3)}, group: int = 1)",
        _convolution,
        _convolution_flops,
        "ONNX Conv-11 of rank 5; filter [O, C/group, kD, kH, kW]",
    ),
    row(
        f"CONV_3D_TRANSPOSE(input[5]: float, {_INPUTS}; {moves(3)}, group: int = 1, output_padding: ints[3] = 0 0 0)",
        _transposed,
        _transposed_flops,
        "ONNX ConvTranspose-11 of rank 5; filter [C, O/group, kD, kH, kW]",
    ),
    row(
        "DEFORMABLE_CONV_2D(input[4]: float, filter: float as input, offset: float as input, bias?: float as input, "
        f"mask?: float as input; {moves(2)}, group: int = 1, offset_group: int = 1)",
        _deformable,
        _deformable_flops,
        "NNADAPTER_DEFORMABLE_CONV_2D; ONNX DeformConv-22 of rank 4; offset [N, offset_group * kH * kW * 2, H, W]",
    ),
)
