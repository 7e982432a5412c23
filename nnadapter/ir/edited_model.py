"""A model while it is edited, to look at: the half of the editor that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Operand, OperandType
from nnadapter.ir.origins import Origins


class EditedModel:
    """One model as it stands after the edits so far. Operands and operations keep their numbers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        """The model as it was."""
        self.changed = False
        """Something was edited."""
        self.types = model.operation_types
        """Types of the operations that are or were there."""
        self._operands = list(model.operands)
        self._operations: list[Operation | None] = list(model.operations)
        self._origins: dict[int, Origins] = {}
        """Of operations that were removed, added or adopted others; the others know their own."""
        self._sequence: Sequence[int] = range(len(model.operations))
        """Operations in their order, but for what was placed since."""
        self._is_settled = True
        """Nothing was placed or removed since."""
        self._placed: dict[int, list[int]] = {}
        """Operations that were added, by the place in the sequence that they stand before."""
        self._place_of: dict[int, int] = {}
        """The place of each of them."""
        self._places: Mapping[int, int] | None = None
        """The place in the sequence of each operation in it; None where nobody has asked."""
        self._position = 0
        self._alias: dict[int, int] = {}
        self._stale: set[int] = set()
        """Operations that may read an operand which another one stands for by now."""
        self._consumers: dict[int, dict[int, None]] = {}
        """Of operands that were asked for, or edited; the model knows the others'."""
        self._outputs = set(model.outputs)

    def order(self) -> Sequence[int]:
        """The numbers of the operations that are there, in an order in which they can run, to look at them.

        Whoever adds operations goes through a `sweep`, which says where they stand.
        """
        if self._is_settled:
            return self._sequence
        operations = self._operations
        return [index for index in self._merged() if operations[index] is not None]

    def operation(self, index: int) -> Operation:
        """The operation with that number; one that was removed cannot be asked for."""
        if index in self._stale:
            self._resolve(index)
        operation = self._operations[index]
        assert operation is not None, "the operation was removed"
        return operation

    def operand(self, index: int) -> Operand:
        """The operand with that number."""
        return self._operands[index]

    def type_of(self, index: int) -> OperandType:
        """The type of an operand."""
        return self._operands[index].type

    def value_of(self, index: int) -> Array | None:
        """The contents of a constant; None for any other operand and for `ABSENT`."""
        return None if index == ABSENT else self._operands[index].value

    def producer(self, operand: int) -> int | None:
        """The operation that makes the operand, or None for constants and model inputs."""
        return self._producer.get(operand)

    def consumers(self, operand: int) -> Mapping[int, None]:
        """The operations that read the operand, as the keys."""
        return self._readers(operand)

    def first_reader(self, operand: int) -> int | None:
        """The first operation in the order that reads the operand; None if none does."""
        return min(self._readers(operand), key=self._place, default=None)

    def reader_count(self, operand: int) -> int:
        """How many operations read the operand."""
        readers = self._consumers.get(operand)
        return len(self.model.consumers.get(operand, ()) if readers is None else readers)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The operands that are model outputs by now, in the model's order."""
        return tuple(map(self._resolved, self.model.outputs))

    def is_output(self, operand: int) -> bool:
        """True for an operand that is a model output."""
        return operand in self._outputs

    def _merged(self) -> Sequence[int]:
        """The sequence with what was placed, and with what was removed."""
        if not self._placed:
            return self._sequence
        merged: list[int] = []
        for position, index in enumerate(self._sequence):
            merged += self._placed.get(position, ())
            merged.append(index)
        merged += self._placed.get(len(self._sequence), ())
        return merged

    def _place(self, index: int) -> tuple[int, bool, int]:
        """What operations are in order by."""
        if index in self._place_of:
            return self._place_of[index], False, index
        if self._places is None:
            self._places = {operation_index: place for place, operation_index in enumerate(self._sequence)}
        return self._places[index], True, index

    def _resolve(self, index: int) -> None:
        """Let an operation read what stands for its inputs by now; once for all of them, as it may have very many."""
        self._stale.discard(index)
        operation = self._operations[index]
        if operation is not None:
            inputs = tuple(map(self._resolved, operation.inputs))
            self._operations[index] = Operation(
                operation.type, inputs, operation.outputs, operation.attributes, operation.origins
            )

    def _resolved(self, operand: int) -> int:
        if operand not in self._alias:
            return operand  # nearly always
        path = []
        while operand in self._alias:
            path.append(operand)
            operand = self._alias[operand]
        self._alias.update(dict.fromkeys(path, operand))
        return operand

    def _readers(self, operand: int) -> dict[int, None]:
        readers = self._consumers.get(operand)
        if readers is None:
            readers = self._consumers[operand] = dict.fromkeys(self.model.consumers.get(operand, ()))
        return readers

    @cached_property
    def _producer(self) -> dict[int, int]:
        return dict(self.model.producer)
