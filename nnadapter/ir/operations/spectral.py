"""Fourier transforms. Complex numbers lie in a last axis of 2, real ones in a last axis of 1."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, OperandType
from nnadapter.ir.operations.row import Types, integer, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_axis, check_vector
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_ONE_SIDED = Attribute("onesided", AttributeKind.BOOL, False)


def _parts(type_: OperandType) -> int:
    parts = type_.dimensions[-1]
    if parts not in (1, 2):
        raise InvalidModelError(f"the last axis of input has {parts} elements, expected 1 or 2")
    return parts


def _transform(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank - 1)
    length, inverse, parts = integer(attributes, "length"), bool(attributes["inverse"]), _parts(first)
    check_at_least("length", (length,), 1)
    if attributes["onesided"] and (parts == 2) is not inverse:
        raise InvalidModelError(
            f"a one-sided transform with inverse {inverse} got {'complex' if parts == 2 else 'real'} numbers, "
            "expected real ones forwards and complex ones back"
        )
    onesided = bool(attributes["onesided"])
    size = length // 2 + 1 if onesided and not inverse else length
    dimensions = (*first.dimensions[:axis], size, *first.dimensions[axis + 1 : -1])
    return (OperandType(first.dtype, (*dimensions, 1 if onesided and inverse else 2)),)


def _short_time(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, window = present(types, 0), (types[1] if len(types) > 1 else None)
    step, length = integer(attributes, "frame_step"), integer(attributes, "frame_length")
    check_at_least("frame_step", (step,), 1)
    check_at_least("frame_length", (length,), 1)
    batch, size, _ = first.dimensions
    if size < length:
        raise InvalidModelError(f"frames have {length} elements, expected at most {size}, those of the signal")
    if window is not None:
        check_vector("window", window, length)
    onesided = bool(attributes["onesided"])
    if onesided and _parts(first) == 2:
        raise InvalidModelError("a one-sided transform got complex numbers, expected real ones")
    return (OperandType(first.dtype, (batch, (size - length) // step + 1, length // 2 + 1 if onesided else length, 2)),)


def _flops_of(elements: int, length: int) -> int:
    """The usual count of a fast transform: 5 n log2 n for n complex numbers."""
    return 5 * elements * max(1, (length - 1).bit_length())


def _transform_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    length, axis = int(integer(attributes, "length")), integer(attributes, "axis")
    others = outputs[0].size // (outputs[0].dimensions[axis] * outputs[0].dimensions[-1] or 1)
    return _flops_of(others * length, length)


def _short_time_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    batch, frames, _, _ = outputs[0].dimensions
    length = int(integer(attributes, "frame_length"))
    windowed = batch * frames * length if len(types) > 1 else 0
    return _flops_of(batch * frames * length, length) + windowed


ROWS: tuple[OperationSchema, ...] = (
    row(
        "DFT",
        (Role("input", FLOATING),),
        _transform,
        _transform_flops,
        "ONNX DFT-20",
        attributes=(
            Attribute("axis", AttributeKind.INT),
            Attribute("length", AttributeKind.INT),
            Attribute("inverse", AttributeKind.BOOL, False),
            _ONE_SIDED,
        ),
        ranks=(2, 64),
    ),
    row(
        "STFT",
        (Role("input", FLOATING), Role("window", FLOATING, optional=True, same_dtype_as="input")),
        _short_time,
        _short_time_flops,
        "ONNX STFT-17",
        attributes=(
            Attribute("frame_step", AttributeKind.INT),
            Attribute("frame_length", AttributeKind.INT),
            _ONE_SIDED,
        ),
        ranks=(3, 3),
    ),
)
"""The rows of this family."""
