"""Convolutions of volumes, [N, C, D, H, W]. They have no other layout; triples are (deep, down, across)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_vector
from nnadapter.ir.operations.windows import window_count
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, FlopsRule, OperationSchema, Role

_AXES = ("depth", "height", "width")
_ROLES = (
    Role("input", FLOATING),
    Role("filter", FLOATING, same_dtype_as="input"),
    Role("bias", FLOATING, optional=True, same_dtype_as="input"),
)
_ATTRIBUTES = (
    Attribute("strides", AttributeKind.INTS, (1, 1, 1), length=3),
    # pads = (front, top, left, back, bottom, right)
    Attribute("pads", AttributeKind.INTS, (0,) * 6, length=6),
    Attribute("dilations", AttributeKind.INTS, (1, 1, 1), length=3),
    Attribute("group", AttributeKind.INT, 1),
)


def _check(types: Types, attributes: Attributes, divided: str, channels: int, outputs: int) -> None:
    """Check what both convolutions share: `group` must divide `channels`, and the bias have `outputs` elements."""
    weight = present(types, 1)
    if weight.rank != 5 or 0 in weight.dimensions:
        raise InvalidModelError(f"filter has dimensions {list(weight.dimensions)}, expected five, none of them 0")
    group = integer(attributes, "group")
    if group < 1 or channels % group:
        raise InvalidModelError(f"group is {group}, expected a divisor of {channels} {divided} channels")
    for name, smallest in (("strides", 1), ("dilations", 1), ("pads", 0)):
        check_at_least(name, integers(attributes, name), smallest)
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        check_vector("bias", bias, outputs)


def _convolution(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    image, weight = present(types, 0), present(types, 1)
    outputs = weight.dimensions[0] if weight.rank else 0
    _check(types, attributes, "output", outputs, outputs)
    taken = weight.dimensions[1] * integer(attributes, "group")
    if image.dimensions[1] != taken:
        raise InvalidModelError(f"input has {image.dimensions[1]} channels, expected {taken}: the filter's times group")
    pads, strides, dilations = (integers(attributes, name) for name in ("pads", "strides", "dilations"))
    sizes = tuple(
        window_count(
            name,
            image.dimensions[2 + axis] + pads[axis] + pads[3 + axis],
            weight.dimensions[2 + axis],
            strides[axis],
            dilations[axis],
        )
        for axis, name in enumerate(_AXES)
    )
    return (OperandType(image.dtype, (image.dimensions[0], outputs, *sizes)),)


def _transposed(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    image, weight = present(types, 0), present(types, 1)
    channels = image.dimensions[1]
    outputs = (weight.dimensions[1] if weight.rank > 1 else 0) * integer(attributes, "group")
    _check(types, attributes, "input", channels, outputs)
    if channels != weight.dimensions[0]:
        raise InvalidModelError(f"input has {channels} channels, expected {weight.dimensions[0]} as the filter has")
    sizes = tuple(_spread(axis, image.dimensions[2 + axis], weight, attributes) for axis in range(3))
    return (OperandType(image.dtype, (image.dimensions[0], outputs, *sizes)),)


def _spread(axis: int, size: int, weight: OperandType, attributes: Attributes) -> int:
    pads, strides, dilations = (integers(attributes, name) for name in ("pads", "strides", "dilations"))
    more, limit = integers(attributes, "output_padding")[axis], max(strides[axis], dilations[axis])
    if not 0 <= more < limit:
        raise InvalidModelError(f"output_padding of the {_AXES[axis]} is {more}, expected 0 or more, less than {limit}")
    extent = (weight.dimensions[2 + axis] - 1) * dilations[axis] + 1
    result = strides[axis] * (size - 1) + extent + more - pads[axis] - pads[3 + axis]
    if size < 1 or result < 1:
        raise InvalidModelError(
            f"output {_AXES[axis]} is {result} for an input of {size}, expected at least 1: pads too large"
        )
    return result


def _flops(of: int) -> FlopsRule:
    """Products with the filter for each element of the input (0) or the output (1), and the bias."""

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        elements = (present(types, 0), outputs[0])[of].size
        bias = outputs[0].size if len(types) > 2 and types[2] is not None else 0
        return 2 * elements * prod(present(types, 1).dimensions[1:]) + bias

    return flops


ROWS: tuple[OperationSchema, ...] = (
    row(
        "CONV_3D",
        _ROLES,
        _convolution,
        _flops(1),
        "ONNX Conv-11 of rank 5; filter [O, C/group, kD, kH, kW]",
        attributes=_ATTRIBUTES,
        ranks=(5, 5),
    ),
    row(
        "CONV_3D_TRANSPOSE",
        _ROLES,
        _transposed,
        _flops(0),
        "ONNX ConvTranspose-11 of rank 5; filter [C, O/group, kD, kH, kW]",
        attributes=(*_ATTRIBUTES, Attribute("output_padding", AttributeKind.INTS, (0, 0, 0), length=3)),
        ranks=(5, 5),
    ),
)
"""The rows of this family."""
