"""Pieces that shape rules are made of: axes, broadcasting, and which layout a result has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import cast

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.schema import Attributes

Dimensions = tuple[int, ...]


def like(type_: OperandType, dimensions: Dimensions, dtype: DataType | None = None) -> OperandType:
    """The type of a result whose axes are those of `type_`: its layout is kept, its quantisation is not."""
    dtype = dtype or type_.dtype
    if dimensions == type_.dimensions and dtype is type_.dtype and type_.quantisation is None:
        return type_
    layout = type_.layout if len(dimensions) == 4 else Layout.NCHW
    return OperandType(dtype, dimensions, layout)


def broadcast(shapes: Sequence[Dimensions]) -> Dimensions:
    """Return the shape that numpy's broadcasting gives.

    Raises:
        InvalidModelError: two of them do not fit together.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if shape != result:
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


def layout_of(types: Iterable[OperandType], rank: int) -> Layout:
    """The layout of an elementwise result: NHWC if any operand of rank 4 is."""
    if rank != 4:
        return Layout.NCHW
    nhwc = any(type_.layout is Layout.NHWC and type_.rank == 4 for type_ in types)
    return Layout.NHWC if nhwc else Layout.NCHW


def check_axis(axis: int, rank: int) -> int:
    """Return `axis`, or raise InvalidModelError unless it is in [0, rank)."""
    if not 0 <= axis < rank:
        raise InvalidModelError(f"axis is {axis}, expected one of 0 to {rank - 1} for an input of rank {rank}")
    return axis


def check_vector(name: str, type_: OperandType, length: int) -> None:
    """Raise InvalidModelError unless an operand has dimensions [length]."""
    if type_.dimensions != (length,):
        raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected [{length}]")


def channel_axis(type_: OperandType) -> int:
    """The axis of the channels: 1, or the last one where the layout is NHWC."""
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def image_size(type_: OperandType) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of an image of either layout."""
    if type_.layout is Layout.NHWC:
        batch, height, width, channels = type_.dimensions
    else:
        batch, channels, height, width = type_.dimensions
    return batch, channels, height, width


def image_like(type_: OperandType, channels: int, height: int, width: int) -> OperandType:
    """The type of an image of the batch, data type and layout of `type_`, and of that size."""
    batch = type_.dimensions[0]
    if type_.layout is Layout.NHWC:
        return like(type_, (batch, height, width, channels))
    return like(type_, (batch, channels, height, width))


def integer(attributes: Attributes, name: str) -> int:
    """An attribute of kind INT."""
    return cast("int", attributes[name])


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    """An attribute of kind INTS."""
    return cast("tuple[int, ...]", attributes[name])


def floats(attributes: Attributes, name: str) -> tuple[float, ...]:
    """An attribute of kind FLOATS."""
    return cast("tuple[float, ...]", attributes[name])


def string(attributes: Attributes, name: str) -> str:
    """An attribute of kind STRING."""
    return cast("str", attributes[name])


def check_at_least(name: str, values: Sequence[int], smallest: int) -> None:
    """Raise InvalidModelError if a value of a list attribute is too small."""
    if values and min(values) < smallest:
        raise InvalidModelError(f"{name} is {list(values)}, expected every value to be at least {smallest}")


def check_length(name: str, values: Sequence[object], length: int) -> None:
    """Raise InvalidModelError unless a list attribute has that many values."""
    if len(values) != length:
        raise InvalidModelError(f"{name} has {len(values)} values {list(values)}, expected {length}")
