"""Segments as models, and their specialization for concrete sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nnadapter.drivers import SegmentModel
from nnadapter.errors import InvalidModelError
from nnadapter.ir import SymbolicNumber, structure, verify
from nnadapter.ir.symbolic_numbers import slot_reader
from nnadapter.records import dataclass


@dataclass(frozen=True, eq=False)
class Part:
    """Segment as a model, in the form of its device, and the names of its inputs."""

    model: SegmentModel
    inputs: tuple[str, ...]


class SpecializablePart:
    """Segment with symbolic sizes. Specialization turns its shape-derived inputs into constants."""

    def __init__(self, part: Part, shape_derived_values: structure.ShapeDerivedValues) -> None:
        self.part, self.given = part, shape_derived_values
        self.inputs = tuple(name for name in part.inputs if name not in shape_derived_values.names)
        with suppress(InvalidModelError):  # specialization reports the same error
            verify(part.model)  # once: guards extend the result to all sizes that a replay accepts
        named = zip(part.inputs, part.model.inputs, strict=True)
        self._given = {index: name for name, index in named if name in shape_derived_values.names}
        self.model = structure.SpecializableModel(part.model, tuple(self._given))
        part_numbers = {value.number for value in structure.numbers(part.model) if isinstance(value, SymbolicNumber)}
        self._key = slot_reader(sorted(part_numbers | shape_derived_values.numbers))

    def key(self, replayed: Sequence[Any]) -> tuple[Any, ...]:
        """Return the `replayed` sizes on which the segment depends, to look up its specialization."""
        return self._key(replayed)

    def specialize(self, replayed: Sequence[Any]) -> Part:
        contents = {}
        if self._given:
            values = self.given.at(replayed)
            contents = {index: values[name] for index, name in self._given.items()}
        return Part(structure.SpecializedModel(self.model, replayed, contents), self.inputs)


def group_specializations(parts: Sequence[SpecializablePart]) -> None:
    """Share types and symbolic numbers between one device's segments: each set of sizes is evaluated once."""
    structure.SpecializationGroup([part.model for part in parts])
