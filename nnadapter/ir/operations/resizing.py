"""Resizing by sampling."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, NUMERIC, OperandType
from nnadapter.ir.operations.row import Types, floats, integers, no_flops, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_length
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_ROUNDING = 1e-3
"""Room for scales that were computed in float32."""

_ATTRIBUTES = (
    Attribute("shape", AttributeKind.INTS),
    Attribute("scales", AttributeKind.FLOATS),
    Attribute(
        "coordinate_transformation_mode",
        AttributeKind.STRING,
        "half_pixel",
        ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"),
    ),
)


def _resize(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    shape = integers(attributes, "shape")
    scales = floats(attributes, "scales")
    check_length("shape", shape, first.rank)
    check_length("scales", scales, first.rank)
    check_at_least("shape", shape, 0)
    for axis, (size, scale, result) in enumerate(zip(first.dimensions, scales, shape, strict=True)):
        # Whether sizes or scales were given, and however they were rounded, they are less than one element apart.
        if not scale > 0 or abs(size * scale - result) >= 1 + _ROUNDING * max(1, result) or (size == 0 and result > 0):
            raise InvalidModelError(f"axis {axis} goes from {size} to {result}, expected about {size} * {scale}")
    return (like(first, shape),)


def _linear_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # Two products and a sum for every axis that changes.
    changed = zip(present(types, 0).dimensions, outputs[0].dimensions, strict=True)
    return 3 * outputs[0].size * sum(size != result for size, result in changed)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "RESIZE_NEAREST",
        (Role("input", NUMERIC),),
        _resize,
        no_flops,
        "NNAPI RESIZE_NEAREST_NEIGHBOR; NNADAPTER_RESIZE_NEAREST; ONNX Resize-19, mode nearest",
        attributes=(
            *_ATTRIBUTES,
            Attribute(
                "nearest_mode",
                AttributeKind.STRING,
                "round_prefer_floor",
                ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
            ),
        ),
        ranks=(1, 64),
    ),
    row(
        "RESIZE_LINEAR",
        (Role("input", FLOATING),),
        _resize,
        _linear_flops,
        "NNAPI RESIZE_BILINEAR; NNADAPTER_RESIZE_LINEAR; ONNX Resize-19, mode linear, in every axis that changes",
        attributes=_ATTRIBUTES,
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
