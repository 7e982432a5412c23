"""What differs between models of one structure, and the same model with another such.

Two models of one `Model.structure` differ in names, in numbers (dimensions, and the numbers in attributes) and in what
constants hold. What a compiler decided for one of them holds for the other where it asked for none of those numbers
(`ir.tracing`) and contents (`ir.traced_arrays`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from nnadapter.ir.extract import submodel
from nnadapter.ir.model import Model, Operation, is_number
from nnadapter.ir.operand import Array, Operand, OperandType
from nnadapter.ir.tracing import Interned, Traced, is_traced
from nnadapter.process.cache import Cache


def numbers(model: Model) -> list[Any]:
    """Every dimension and every number in attributes, in an order that the structure fixes."""
    all_numbers: list[Any] = []
    for operand in model.operands:
        all_numbers += operand.type.dimensions
    for operation in model.operations:
        for value in operation.attributes.values():
            if isinstance(value, tuple):
                all_numbers += value
            elif is_number(value):
                all_numbers.append(value)
    return all_numbers


def with_numbers(model: Model, values: Sequence[Any]) -> Model:
    """The same model with other numbers, as many as `numbers` gives and in that order; what stays is shared."""
    source = iter(values)
    operands = tuple(_with_dimensions(operand, source) for operand in model.operands)
    operations = tuple(_with_attributes(operation, source) for operation in model.operations)
    return model.resized(operands, operations, model.varying)


def constants(model: Model) -> list[Array]:
    """The contents of all constants, in an order that the structure fixes."""
    return [operand.value for operand in model.operands if operand.value is not None]


def with_constants(model: Model, values: Sequence[Any]) -> Model:
    """The same model with other contents, as many as `constants` gives and in that order."""
    source = iter(values)
    operands = tuple(
        operand if operand.value is None else Operand(operand.name, operand.type, operand.lifetime, next(source))
        for operand in model.operands
    )
    return Model(operands, model.operations, model.inputs, model.outputs, model.varying)


_MOST_PARTS = 64


class SymbolicModel:
    """A model with traced numbers, filled with plain ones for one set of sizes after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._values = Interned()
        self._types: dict[tuple[object, ...], int] = {}
        self._operands = [
            (index, self._type(operand.type))
            for index, operand in enumerate(model.operands)
            if is_traced(operand.type.dimensions)
        ]
        self._operations = [
            (index, {name: self._values.add(value) for name, value in operation.attributes.items() if is_traced(value)})
            for index, operation in enumerate(model.operations)
            if any(map(is_traced, operation.attributes.values()))
        ]
        self._varying = _varying(numbers(model))
        self._parts: Cache[Hashable, SymbolicModel] = Cache("parts of traced models", _MOST_PARTS)

    def part(self, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> SymbolicModel:
        """What `ir.extract.submodel` makes of it, remembered; itself if it is all of it."""
        key = (tuple(operations), tuple(inputs), tuple(outputs))
        cached_part = self._parts.get(key)
        if cached_part is not None:
            return cached_part
        part = submodel(self._model, *key)
        return self._parts.keep(key, self if part.structure == self._model.structure else SymbolicModel(part))

    def filled(self, replay_values: Sequence[Any]) -> Model:
        """The model with the numbers of a replay."""
        operands, operations = list(self._model.operands), list(self._model.operations)
        values = self._values.settled(replay_values)
        types = [
            OperandType(dtype, values[dimensions], *fields)  # type: ignore[arg-type,call-overload]
            for dtype, dimensions, *fields in self._types
        ]
        for index, type_ in self._operands:
            operand = operands[index]
            operands[index] = Operand(operand.name, types[type_], operand.lifetime, operand.value)
        for index, changed in self._operations:
            operation = operations[index]
            attributes = {**operation.attributes, **{name: values[value] for name, value in changed.items()}}
            operations[index] = replace(operation, attributes=attributes)
        model = self._model.resized(tuple(operands), tuple(operations), self._varying)
        # What was checked with traced numbers was checked for all that a replay does not refuse.
        return model.found_sound() if self._model.is_sound else model

    def _type(self, type_: OperandType) -> int:
        key = (type_.dtype, self._values.add(type_.dimensions), type_.layout, type_.quantization)
        return self._types.setdefault(key, len(self._types))


def _varying(values: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, Traced):
            groups.setdefault(value.number, []).append(place)
    return tuple(map(tuple, groups.values()))


def _with_dimensions(operand: Operand, source: Iterator[Any]) -> Operand:
    type_ = operand.type
    dimensions = tuple(next(source) for _ in type_.dimensions)
    if _same(dimensions, type_.dimensions):
        return operand
    changed = OperandType(type_.dtype, dimensions, type_.layout, type_.quantization)
    return Operand(operand.name, changed, operand.lifetime, operand.value)


def _with_attributes(operation: Operation, source: Iterator[Any]) -> Operation:
    changed = {}
    for name, value in operation.attributes.items():
        if isinstance(value, tuple):
            replacement: Any = tuple(next(source) for _ in value)
            if not _same(replacement, value):
                changed[name] = replacement
        elif is_number(value) and (replacement := next(source)) is not value:
            changed[name] = replacement
    if not changed:
        return operation
    attributes = {**operation.attributes, **changed}
    return Operation(operation.type, operation.inputs, operation.outputs, attributes, operation.origins)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether all are the very same numbers; to compare traced ones would be to decide something."""
    return all(item is other for item, other in zip(first, second, strict=True))
