"""A segment for all sizes, filled for one set of them after the other, for a device that compiles for fixed sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nnadapter.errors import InvalidModelError
from nnadapter.ir.filled_model import SpecializableModel, SpecializationGroup, SpecializedModel
from nnadapter.ir.given import Given
from nnadapter.ir.replaying import taking
from nnadapter.ir.structure import numbers
from nnadapter.ir.tracing import Traced
from nnadapter.ir.verifying import verify
from nnadapter.offering.part import Part


class SpecializablePart:
    """A segment whose dimensions and attributes are traced, and what it is given of shapes.

    Args:
        part: the segment; what it is given is among its inputs.
        given: of it.
    """

    def __init__(self, part: Part, given: Given) -> None:
        self.part, self.given = part, given
        self.inputs = tuple(name for name in part.inputs if name not in given.names)
        """What it reads once it is filled."""
        with suppress(InvalidModelError):  # who is asked about it at some sizes says so
            verify(part.model)  # once: what holds for traced numbers holds for all that a replay does not refuse
        named = zip(part.inputs, part.model.inputs, strict=True)
        self._given = {index: name for name, index in named if name in given.names}
        self.model = SpecializableModel(part.model, tuple(self._given))
        """Of the segment."""
        own = {value.number for value in numbers(part.model) if isinstance(value, Traced)}
        self._key = taking(sorted(own | given.numbers))

    def key(self, known: Sequence[Any]) -> tuple[Any, ...]:
        """Equal where the filled segments are."""
        return self._key(known)

    def filled(self, known: Sequence[Any]) -> Part:
        """The segment with the numbers of a replay; what it was given are constants."""
        contents = {}
        if self._given:
            values = self.given.at(known)
            contents = {index: values[name] for index, name in self._given.items()}
        return Part(SpecializedModel(self.model, known, contents), self.inputs)


def group_specializations(parts: Sequence[SpecializablePart]) -> None:
    """Say that segments, of one device, are filled by the same replays: what these come to is made once for all."""
    SpecializationGroup([part.model for part in parts])
