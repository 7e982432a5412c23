"""What has a place: the part of a tensor that functions on tensors need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from nnadapter.eager.dtypes import contents
from nnadapter.eager.place import Place, common_place
from nnadapter.ir.operand import Array


class Placed:
    """Contents in a place.

    Args:
        array: read-only.
        place: where they live.
    """

    __slots__ = ("_array", "_place")

    def __init__(self, array: Array, place: Place) -> None:
        self._array = array
        self._place = place

    @property
    def place(self) -> Place:
        """Where it lives."""
        return self._place

    @property
    def held(self) -> Array:
        """The contents, read-only, not copied."""
        return self._array

    def made(self, array: Array) -> Self:
        """Another one in the same place."""
        return type(self)(array, self._place)


def joined(operands: Sequence[Any]) -> tuple[Placed, list[Array]]:
    """Return the first that has a place of what an operation is given, and everything as arrays.

    Raises:
        InvalidInputError: they are of two devices, or something is no array of numbers.
    """
    placed = [operand for operand in operands if isinstance(operand, Placed)]
    common_place([tensor.place for tensor in placed])
    return placed[0], [operand.held if isinstance(operand, Placed) else contents(operand) for operand in operands]
