"""Immutable models, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise

from nnadapter.ir.operand import Lifetime, Operand, OperandType, dtype_name
from nnadapter.ir.schema import Attributes, AttributeValue
from nnadapter.ir.symbolic_numbers import SymbolicNumber, is_symbolic
from nnadapter.records import dataclass, field

ABSENT = -1
"""Placeholder for an absent optional input."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a model.

    Args:
        type: a row of the schema table; `nnadapter ops --describe CONV_2D` documents one.
        inputs: indices into `Model.operands` by role. An absent input is `ABSENT` (-1), or omitted at the end.
        outputs: indices of the results.
        attributes: all attributes of the row, in order, with defaults.
        origins: names of the implemented ONNX nodes; the first node determined the operation's position.

    Operations compare by identity.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Attributes = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    def renumbered(self, number: Callable[[int], int], origins: tuple[str, ...] | None = None) -> Operation:
        """Return a copy with operand indices `number(index)`, and with `origins` if set."""
        return Operation(
            self.type,
            tuple(map(number, self.inputs)),
            tuple(map(number, self.outputs)),
            self.attributes,
            self.origins if origins is None else origins,
        )


class Structure:
    """Hashable value with a cached hash."""

    __slots__ = ("_hash", "_held")

    def __init__(self, key: Hashable) -> None:
        self._held = key
        self._hash = hash(key)

    def __reduce__(self) -> tuple[type[Structure], tuple[Hashable]]:
        return Structure, (self._held,)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure) and self._hash == other._hash and self._held == other._held
        )


@dataclass(frozen=True, eq=False)
class Model:
    """An immutable model, created by `ModelBuilder`.

    Args:
        operands: all values. Other fields contain indices into it.
        operations: in topological order.
        inputs: in the order of a run's arguments.
        outputs: in the order of a run's results; may contain duplicates and inputs.
        covarying_number_groups: groups of indices into `ir.structure.numbers` with one symbolic size each: a hint for
            compilers that compile once for many shapes.

    Models compare by identity. `nnadapter.ir.definition.by_definition(model, arrays)` is a slow reference
    implementation.
    """

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    covarying_number_groups: tuple[tuple[int, ...], ...] = ()
    is_verified: bool = field(default=False, init=False, repr=False)
    """True after `verify`, or if built from verified parts."""

    @cached_property
    def operation_count(self) -> int:
        return len(self.operations)

    def type_of(self, operand: int) -> OperandType | None:
        """Return the type of an operand, None for `ABSENT`."""
        return None if operand == ABSENT else self.type_at(operand)

    def type_at(self, operand: int) -> OperandType:
        """Return the type of an operand."""
        return self.operands[operand].type

    @cached_property
    def structure(self) -> Hashable:
        """Key that ignores names, sizes, numbers in attributes, and contents (but not shapes) of constants."""
        operands = tuple(
            (
                operand.lifetime,
                operand.type.dtype,
                len(operand.type.dimensions),
                operand.type.layout,
                operand.type.quantization,
                None if operand.value is None else (dtype_name(operand.value.dtype), operand.value.shape),
            )
            for operand in self.operands
        )
        operations = tuple(
            (
                operation.type,
                operation.inputs,
                operation.outputs,
                _form(operation.attributes) if operation.attributes else (),
            )
            for operation in self.operations
        )
        return Structure((operands, operations, self.inputs, self.outputs))

    def resized(
        self, operands: tuple[Operand, ...], operations: tuple[Operation, ...], varying: tuple[tuple[int, ...], ...]
    ) -> Model:
        """Return a copy with other operands and operations, which differ only in sizes and attribute numbers.

        `varying` are its `covarying_number_groups`.
        """
        model = Model(operands, operations, self.inputs, self.outputs, varying)
        model.__dict__["structure"] = self.structure
        return model

    def mark_verified(self) -> Model:
        object.__setattr__(self, "is_verified", True)
        return self

    @cached_property
    def has_dynamic_shapes(self) -> bool:
        """True if a dimension or attribute is symbolic."""
        return any(SymbolicNumber in map(type, operand.type.dimensions) for operand in self.operands) or any(
            is_symbolic(value) for operation in self.operations for value in operation.attributes.values()
        )

    @cached_property
    def operation_types(self) -> frozenset[str]:
        return frozenset(operation.type for operation in self.operations)

    @cached_property
    def producer(self) -> Mapping[int, int]:
        """Operand index -> index of its producer."""
        return {operand: index for index, operation in enumerate(self.operations) for operand in operation.outputs}

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """Operand index -> ascending indices of the operations that read it."""
        readers_by_operand: dict[int, list[int]] = {}
        for index, operation in enumerate(self.operations):
            for operand in operation.inputs:
                if operand == ABSENT:
                    continue
                readers = readers_by_operand.get(operand)
                if readers is None:
                    readers_by_operand[operand] = [index]
                elif readers[-1] != index:
                    readers.append(index)
        return {operand: tuple(readers) for operand, readers in readers_by_operand.items()}


def is_number(value: object) -> bool:
    """Return whether a value is a number, possibly symbolic, but no bool. `Model.structure` ignores numbers."""
    return isinstance(value, (int, float, SymbolicNumber)) and not isinstance(value, bool)


def _form(attributes: Attributes) -> Hashable:
    return tuple((name, _form_of_operation(value)) for name, value in attributes.items())


def _form_of_operation(value: AttributeValue) -> Hashable:
    if isinstance(value, tuple):
        return len(value)
    return None if is_number(value) else value


def submodel(model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
    """Return a model of only these operations, inputs and outputs, with shared contents of constants."""
    input_set, output_set = frozenset(inputs), frozenset(outputs)
    chosen = [model.operations[index] for index in operations]
    touched = {*inputs, *outputs}
    for operation in chosen:
        touched.update(operation.inputs)
        touched.update(operation.outputs)
    touched.discard(ABSENT)
    operands = sorted(touched)
    is_sound = model.is_verified and _is_complete(model, operations, inputs, outputs, operands)
    if is_sound and _is_entire_model(model, operations, inputs, outputs, operands):
        return model
    position = {operand: number for number, operand in enumerate(operands)}
    position[ABSENT] = ABSENT
    place = position.__getitem__
    part = Model(
        tuple(_as_part_operand(model.operands[index], index in input_set, index in output_set) for index in operands),
        tuple(op.renumbered(place) for op in chosen),
        tuple(map(place, inputs)),
        tuple(map(place, outputs)),
    )
    if not model.has_dynamic_shapes:
        vars(part)["has_dynamic_shapes"] = False  # saves a scan
    return part.mark_verified() if is_sound else part


def _is_entire_model(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], operands: Sequence[int]
) -> bool:
    return (
        len(operations) == len(model.operations)
        and len(operands) == len(model.operands)
        and tuple(inputs) == model.inputs
        and tuple(outputs) == model.outputs
        and not model.covarying_number_groups
    )


def _is_complete(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], operands: Sequence[int]
) -> bool:
    """Return whether operations are in order, and all operands are inputs, results or constants."""
    input_set = frozenset(inputs)
    result_set = set(chain.from_iterable(model.operations[index].outputs for index in operations))
    constant = Lifetime.CONSTANT
    constants = {index for index in operands if model.operands[index].lifetime is constant}
    return (
        all(previous < other for previous, other in pairwise((-1, *operations)))
        and len(input_set) == len(inputs)
        and input_set.isdisjoint(result_set | constants)
        and input_set.isdisjoint((ABSENT,))
        and ABSENT not in outputs
        and len(input_set) + len(result_set) + len(constants) == len(operands)
    )


def _as_part_operand(operand: Operand, is_input: bool, is_output: bool) -> Operand:
    if operand.lifetime is Lifetime.CONSTANT:
        return operand
    lifetime = Lifetime.MODEL_INPUT if is_input else Lifetime.MODEL_OUTPUT if is_output else Lifetime.TEMPORARY
    return operand if lifetime is operand.lifetime else Operand(operand.name, operand.type, lifetime)
