"""The model: operands, operations, and which operands go in and out. Frozen; made by `ir.builder`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nnadapter.ir.operand import Operand, OperandType
from nnadapter.ir.schema import Attributes

ABSENT = -1
"""Stands in `Operation.inputs` for an optional input that is not there."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a model."""

    type: str
    """A row of the schema table."""
    inputs: tuple[int, ...]
    """Positions of operands in the model; `ABSENT` where an optional one is left out."""
    outputs: tuple[int, ...]
    """Positions of operands in the model."""
    attributes: Attributes = field(default_factory=dict)
    """Every attribute of the schema, defaults filled in."""
    origins: tuple[str, ...] = ()
    """Names of the ONNX nodes that it stands for, the one that gave it its place first."""


@dataclass(frozen=True, eq=False)
class Model:
    """A verified model. Two models are equal only if they are the same object; `ir.text` compares contents."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    """In an order in which they can run."""
    inputs: tuple[int, ...]
    """Positions of the operands that are given to a run."""
    outputs: tuple[int, ...]
    """Positions of the operands that a run gives back; one operand may stand here twice, and may be an input."""

    def type_of(self, operand: int) -> OperandType | None:
        """The type of an operand, or None for `ABSENT`."""
        return None if operand == ABSENT else self.operands[operand].type

    @cached_property
    def producer(self) -> Mapping[int, int]:
        """For every operand that an operation makes, the position of that operation."""
        return {operand: index for index, operation in enumerate(self.operations) for operand in operation.outputs}

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """For every operand that is read, the positions of the reading operations, each once, ascending."""
        found: dict[int, list[int]] = {}
        for index, operation in enumerate(self.operations):
            for operand in operation.inputs:
                if operand == ABSENT:
                    continue
                readers = found.setdefault(operand, [])
                if not readers or readers[-1] != index:
                    readers.append(index)
        return {operand: tuple(readers) for operand, readers in found.items()}
