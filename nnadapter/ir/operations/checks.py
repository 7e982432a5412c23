"""Checks that many shape rules make: each raises InvalidModelError with what was got and expected."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Layout, OperandType


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
