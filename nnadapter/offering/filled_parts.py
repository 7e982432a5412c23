"""A segment for all sizes, filled for one set of them after the other, for a device that compiles for fixed sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nnadapter.errors import InvalidModelError
from nnadapter.ir.given import Given
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Lifetime, Operand
from nnadapter.ir.structure import TracedModel, numbers
from nnadapter.ir.tracing import Traced
from nnadapter.ir.verifying import verify
from nnadapter.offering.part import Part


class FillablePart:
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
        self._traced = TracedModel(part.model)
        own = {each.number for each in numbers(part.model) if isinstance(each, Traced)}
        self._numbers = tuple(sorted(own | given.numbers))

    def key(self, known: Sequence[Any]) -> tuple[Any, ...]:
        """Equal where the filled segments are."""
        return tuple([known[number] for number in self._numbers])

    def filled(self, known: Sequence[Any]) -> Part:
        """The segment with the numbers of a replay; what it was given are constants."""
        model = self._traced.filled(known)
        values = self.given.at(known)
        operands = list(model.operands)
        for name, index in zip(self.part.inputs, model.inputs, strict=True):
            if name in values:
                operand, value = operands[index], values[name]
                assert value.shape == operand.type.dimensions, f"{name} is {value.shape}, the model says {operand.type}"
                operands[index] = Operand(operand.name, operand.type, Lifetime.CONSTANT, value)
        inputs = tuple(index for name, index in zip(self.part.inputs, model.inputs, strict=True) if name not in values)
        filled = Model(tuple(operands), model.operations, inputs, model.outputs, model.varying)
        return Part(filled.found_sound() if model.is_sound else filled, self.inputs)
