"""Segments as the models that devices take, and their specialization for concrete sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers import SegmentModel
from nnadapter.errors import InvalidModelError
from nnadapter.ir import SymbolicNumber, verify
from nnadapter.ir.structure import (
    ShapeDerivedValues,
    SpecializableModel,
    SpecializationGroup,
    SpecializedModel,
    numbers,
)
from nnadapter.ir.symbolic_numbers import slot_reader


@dataclass(frozen=True, eq=False)
class Part:
    """A model cut out for one step, and the values that its inputs stand for, in their order."""

    model: SegmentModel
    inputs: tuple[str, ...]


class SpecializablePart:
    """A segment whose dimensions and attributes are traced, and what it is given of shapes.

    Args:
        part: the segment; what it is given is among its inputs.
        given: of it.
    """

    def __init__(self, part: Part, given: ShapeDerivedValues) -> None:
        self.part, self.given = part, given
        self.inputs = tuple(name for name in part.inputs if name not in given.names)
        """What it reads once it is filled."""
        with suppress(InvalidModelError):  # who is asked about it at some sizes says so
            verify(part.model)  # once: what holds for traced numbers holds for all that a replay does not refuse
        named = zip(part.inputs, part.model.inputs, strict=True)
        self._given = {index: name for name, index in named if name in given.names}
        self.model = SpecializableModel(part.model, tuple(self._given))
        """Of the segment."""
        own = {value.number for value in numbers(part.model) if isinstance(value, SymbolicNumber)}
        self._key = slot_reader(sorted(own | given.numbers))

    def key(self, known: Sequence[Any]) -> tuple[Any, ...]:
        """Equal where the filled segments are."""
        return self._key(known)

    def specialize(self, known: Sequence[Any]) -> Part:
        """The segment with the numbers of a replay; what it was given are constants."""
        contents = {}
        if self._given:
            values = self.given.at(known)
            contents = {index: values[name] for index, name in self._given.items()}
        return Part(SpecializedModel(self.model, known, contents), self.inputs)


def group_specializations(parts: Sequence[SpecializablePart]) -> None:
    """Say that segments, of one device, are filled by the same replays: what these come to is made once for all."""
    SpecializationGroup([part.model for part in parts])
