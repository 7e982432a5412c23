"""Shape rules that operations share: checks, broadcasting, and results like an input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Layout, OperandType
from nnadapter.ir.operations.row import Types, integer, present
from nnadapter.ir.operations.windows import layout_of, like
from nnadapter.ir.schema import Attributes

Dimensions = tuple[int, ...]
"""Sizes of an operand's axes."""


def broadcast(shapes: Sequence[Dimensions]) -> Dimensions:
    """Return the shape that numpy's broadcasting gives.

    Raises:
        InvalidModelError: two of them do not fit together.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(result) or shape != result:  # sizes of different axes are not compared
            result = _broadcast_two(result, shape)
    return result


def _broadcast_two(first: Dimensions, second: Dimensions) -> Dimensions:
    reversed_result = []
    for left, right in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if left != right and left != 1 and right != 1:
            raise InvalidModelError(
                f"dimensions {list(first)} and {list(second)} do not broadcast: {left} against {right}, "
                "expected equal sizes or a 1"
            )
        reversed_result.append(right if left == 1 else left)
    return tuple(reversed(reversed_result))


def check_broadcasts_to(name: str, dimensions: Dimensions, target: Dimensions) -> None:
    """Raise InvalidModelError unless `dimensions` broadcast to exactly `target`."""
    if broadcast((target, dimensions)) != target:
        raise InvalidModelError(
            f"{name} has dimensions {list(dimensions)}, expected ones that spread to {list(target)}"
        )


def check_axis(axis: int, rank: int) -> int:
    """Return `axis`, or raise InvalidModelError unless it is in [0, rank)."""
    if not 0 <= axis < rank:
        raise InvalidModelError(f"axis is {axis}, expected one of 0 to {rank - 1} for an input of rank {rank}")
    return axis


def check_vector(name: str, type_: OperandType, length: int) -> None:
    """Raise InvalidModelError unless an operand has dimensions [length]."""
    if type_.dimensions != (length,):
        raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected [{length}]")


def check_at_least(name: str, values: Sequence[int], smallest: int) -> None:
    """Raise InvalidModelError if a value of a list attribute is too small."""
    if any(value < smallest for value in values):  # not by `min`, which compares sizes with each other
        raise InvalidModelError(f"{name} is {list(values)}, expected every value to be at least {smallest}")


def check_length(name: str, values: Sequence[object], length: int) -> None:
    """Raise InvalidModelError unless a list attribute has that many values."""
    if len(values) != length:
        raise InvalidModelError(f"{name} has {len(values)} values {list(values)}, expected {length}")


def check_dimensions(name: str, type_: OperandType, expected: tuple[int, ...]) -> None:
    """Raise InvalidModelError unless an operand has exactly these dimensions."""
    if type_.dimensions != expected:
        raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected {list(expected)}")


def check_onnx_order(type_: OperandType) -> None:
    """Raise InvalidModelError if an image's channels are last."""
    if type_.layout is not Layout.NCHW:
        raise InvalidModelError(f"input has layout {type_.layout.value}, expected NCHW, the only one defined")


def check_indices(indices: OperandType, first: OperandType, axis: int) -> None:
    """Check indices of elements: one along `axis` for each place that they have, which the input has too.

    Raises:
        InvalidModelError: another rank than the input's, or more places along another axis.
    """
    if indices.rank != first.rank:
        raise InvalidModelError(f"indices has rank {indices.rank}, expected {first.rank} as input")
    for other, (size, limit) in enumerate(zip(indices.dimensions, first.dimensions, strict=True)):
        if other != axis and size > limit:
            raise InvalidModelError(f"indices has {size} elements along axis {other}, expected at most {limit}")


def as_first(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """The data type, the dimensions and the layout of the first input."""
    first = present(types, 0)
    return (like(first, first.dimensions),)


def along_axis(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """As the first input, which must have the axis that the attribute `axis` names; else InvalidModelError."""
    check_axis(integer(attributes, "axis"), present(types, 0).rank)
    return as_first(types, attributes)


def spread_pair(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """The first input's data type, the dimensions of both broadcast; InvalidModelError where they do not fit."""
    first, second = present(types, 0), present(types, 1)
    dimensions = broadcast((first.dimensions, second.dimensions))
    return (OperandType(first.dtype, dimensions, layout_of((first, second), len(dimensions))),)
