"""What goes into programs with open sizes and comes out of them, at one set of sizes after the other.

The layers of a network take and give the same, and a run tells all of them the same sizes: what a request needs to know
of these is made once for all programs of a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnadapter.drivers.native.calls import Sized
from nnadapter.drivers.native.serialized import Border
from nnadapter.drivers.native.sizes import OPEN, NumberedSizes
from nnadapter.ir.model import Model
from nnadapter.ir.operand import OperandType
from nnadapter.process.cache import Cache

_Type = tuple[Any, ...]
"""What an `OperandType` is made of, but that each dimension is its place among the sizes, or `OPEN` and its number."""


class _DynamicSignature:
    """A border as far as it is the same at any sizes, with what was made of it at the last few."""

    def __init__(self, inputs: Sequence[_Type], outputs: Sequence[_Type]) -> None:
        self._types = inputs, outputs
        self._sized: Cache[tuple[int, ...], Sized] = Cache("drivers.native.open_borders", 8)

    def at(self, sizes: NumberedSizes, numbers: Sequence[int]) -> Sized:
        """What it is at these numbers, one for each of the sizes."""
        return self._sized.made(tuple(numbers), lambda: Sized(self._border(numbers), sizes.told(numbers)))

    def _border(self, numbers: Sequence[int]) -> Border:
        inputs, outputs = (tuple([_type_at(operand_type, numbers) for operand_type in types]) for types in self._types)
        return Border(inputs, outputs)


class RunSignature:
    """What goes into a program and comes out of it, whose sizes each run tells.

    Args:
        sizes: those that its model leaves open.
        border: of the model.
    """

    def __init__(self, sizes: NumberedSizes, border: _DynamicSignature) -> None:
        self._sizes, self._border = sizes, border

    def numbers(self, sizes: Sequence[Any]) -> list[int]:
        """The sizes of the model among those of a run; see `Execution.at`."""
        return self._sizes.of(sizes)

    def at(self, numbers: Sequence[int]) -> Sized:
        """What goes in and comes out at these."""
        return self._border.at(self._sizes, numbers)


class DynamicSignatures:
    """The borders of the programs of a context."""

    def __init__(self) -> None:
        self._kept: Cache[tuple[Any, ...], _DynamicSignature] = Cache("drivers.native.open_borders", 256)

    def of(self, model: Model, sizes: NumberedSizes) -> RunSignature:
        """What goes into a program of a model with open sizes, and comes out of it."""
        inputs, outputs = (
            tuple([_type_of(model.type_at(operand), sizes) for operand in operands])
            for operands in (model.inputs, model.outputs)
        )
        return RunSignature(sizes, self._kept.made((inputs, outputs), lambda: _DynamicSignature(inputs, outputs)))


def _type_of(type_: OperandType, sizes: NumberedSizes) -> _Type:
    dimensions = tuple(zip(sizes.places(type_.dimensions), type_.dimensions, strict=True))
    placed = tuple([(place, OPEN if place != OPEN else size) for place, size in dimensions])
    return type_.dtype, placed, type_.layout, type_.quantization


def _type_at(type_: _Type, numbers: Sequence[int]) -> OperandType:
    dtype, placed, *type_fields = type_
    return OperandType(
        dtype, tuple([numbers[place] if place != OPEN else size for place, size in placed]), *type_fields
    )
