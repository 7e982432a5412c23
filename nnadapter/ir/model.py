"""Models: operands, operations, inputs and outputs, all frozen; and parts of a model as models."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise

from nnadapter.ir.operand import Lifetime, Operand, OperandType, dtype_name
from nnadapter.ir.schema import Attributes, AttributeValue
from nnadapter.ir.symbolic_numbers import SymbolicNumber, is_symbolic

ABSENT = -1
"""Stands in `Operation.inputs` for an optional input that is not there."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a model. `ModelBuilder.add_operation` makes them; `Model.operations` has them in order.

    Args:
        type: a row of the schema table, such as "CONV_2D". `nnadapter ops --describe CONV_2D` says what it means.
        inputs: for every role of the row, the number of an operand in `Model.operands`; `ABSENT` (-1) where an optional
            one is left out. Absent ones at the end may be missing: `inputs` may be shorter than the roles.
        outputs: numbers of the operands that it makes.
        attributes: every attribute of the row by name, in the row's order, defaults filled in.
        origins: names of the ONNX nodes that it stands for, the one that gave it its place first.

    Operations are equal only if they are the same object.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Attributes = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    def renumbered(self, number: Callable[[int], int], origins: tuple[str, ...] | None = None) -> Operation:
        """The same operation on operands of other numbers; it stands for other nodes if `origins` are given."""
        return Operation(
            self.type,
            tuple(map(number, self.inputs)),
            tuple(map(number, self.outputs)),
            self.attributes,
            self.origins if origins is None else origins,
        )


class Structure:
    """A key that is compared by what it holds, and hashed once."""

    __slots__ = ("_hash", "_held")

    def __init__(self, key: Hashable) -> None:
        self._held = key
        self._hash = hash(key)

    def __reduce__(self) -> tuple[type[Structure], tuple[Hashable]]:
        """What it holds: hashes of texts are others in another process."""
        return Structure, (self._held,)

    def __hash__(self) -> int:
        """The hash of what it holds."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same."""
        return self is other or (
            isinstance(other, Structure) and self._hash == other._hash and self._held == other._held
        )


@dataclass(frozen=True, eq=False)
class Model:
    """A verified model: operands, operations, and which operands go in and out. Frozen; `ModelBuilder` makes it.

    Args:
        operands: every value. All other fields name operands by their position here.
        operations: in an order in which they can run.
        inputs: numbers of the operands that a run is given, in the order of the run's arguments.
        outputs: numbers of the operands that a run gives back; one may stand here twice, and may be an input.
        covarying_number_groups: places in `ir.structure.numbers` that change with the shapes of the ONNX model's
            inputs, those that always hold the same number together: a hint to compilers that compile once for many
            sizes. Empty if nothing is known.

    Two models are equal only if they are the same object; `nnadapter.ir.to_text` compares contents.
    `nnadapter.ir.definition.by_definition(model, arrays)` computes it, slowly and obviously.
    """

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    covarying_number_groups: tuple[tuple[int, ...], ...] = ()
    is_verified: bool = field(default=False, init=False, repr=False)
    """It was checked, or is made of what was; see `ir.verifying`."""

    @cached_property
    def operation_count(self) -> int:
        """How many operations it has."""
        return len(self.operations)

    def type_of(self, operand: int) -> OperandType | None:
        """The type of an operand, or None for `ABSENT`."""
        return None if operand == ABSENT else self.type_at(operand)

    def type_at(self, operand: int) -> OperandType:
        """The type of the operand at a position."""
        return self.operands[operand].type

    @cached_property
    def structure(self) -> Hashable:
        """All but names, dimensions, the numbers in attributes, and what constants hold.

        It is what models for other sizes have in common, and the layers of one model. Dimensions of constants count.
        """
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
        """The same model with other dimensions and numbers in attributes; for `ir.structure`."""
        model = Model(operands, operations, self.inputs, self.outputs, varying)
        model.__dict__["structure"] = self.structure
        return model

    def mark_verified(self) -> Model:
        """The model, after whoever made it or looked at it found that it does not contradict itself."""
        object.__setattr__(self, "is_verified", True)
        return self

    @cached_property
    def has_dynamic_shapes(self) -> bool:
        """Whether it leaves sizes open: dimensions or attributes are traced numbers (`ir.symbolic_numbers`)."""
        return any(SymbolicNumber in map(type, operand.type.dimensions) for operand in self.operands) or any(
            is_symbolic(value) for operation in self.operations for value in operation.attributes.values()
        )

    @cached_property
    def operation_types(self) -> frozenset[str]:
        """Types of all operations."""
        return frozenset(operation.type for operation in self.operations)

    @cached_property
    def producer(self) -> Mapping[int, int]:
        """For every operand that an operation makes, the position of that operation."""
        return {operand: index for index, operation in enumerate(self.operations) for operand in operation.outputs}

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """For every operand that is read, the positions of the reading operations, each once, ascending."""
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
    """Whether the value of an attribute is a number, which may differ between models of one structure."""
    return isinstance(value, (int, float, SymbolicNumber)) and not isinstance(value, bool)


def _form(attributes: Attributes) -> Hashable:
    return tuple((name, _form_of_operation(value)) for name, value in attributes.items())


def _form_of_operation(value: AttributeValue) -> Hashable:
    if isinstance(value, tuple):
        return len(value)
    return None if is_number(value) else value


def submodel(model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
    """Return the model that holds just `operations`.

    1. Operands that the operations touch are kept, in their order; constants keep their contents, which are shared.
    2. `inputs` and `outputs` are operands of the whole model, in the order the new model shall have them.
    3. Lifetimes are set anew: an operand in `inputs` is a model input, one in `outputs` a model output.
    4. Of a sound model, all of it is the model itself.
    """
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
        vars(part)["has_dynamic_shapes"] = False  # nor does a part of it leave sizes open; nobody has to look
    return part.mark_verified() if is_sound else part


def _is_entire_model(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], operands: Sequence[int]
) -> bool:
    """Whether a part that is sound lacks nothing; what varies in a part is not said."""
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
    """Whether such a part of a sound model is sound: operations in order, operands given, made or constant."""
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
