"""A segment as kernels see it, whatever form its device takes it in: operations, and values by name.

What splits segments, runs their pieces and keeps them in files knows this form alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.extract import submodel
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall

Part = Callable[[Sequence[int], Sequence[str], Sequence[str]], SegmentModel]
"""Positions of operations, names of inputs and of outputs -> the model that holds just these."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """What a kernel reads of the model itself."""

    type: OperandType
    value: Array


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """What makes an operation the call of a kernel."""

    call: CustomCall
    inputs: tuple[str, ...]
    """Of the operation, constants among them."""
    types: tuple[OperandType, ...]
    """Of these."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentOperation:
    """One operation, or node."""

    type: str
    reads: tuple[str, ...]
    """What it reads, but for constants."""
    makes: tuple[str, ...]
    called: Called | None = None
    """None for the driver's own."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A model that calls kernels."""

    operations: tuple[SegmentOperation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    """Those that kernels read, and those that come out as they are."""
    part: Part
    type_of: Callable[[str], OperandType | None]
    """Of what an operation makes; None where it is not known beforehand."""

    @cached_property
    def calls(self) -> tuple[int, ...]:
        """Positions of the operations that kernels compute."""
        return tuple(at for at, operation in enumerate(self.operations) if operation.called is not None)


def ir_segment(model: Model, is_call: Callable[[Operation, Sequence[OperandType]], bool]) -> Segment:
    """A segment as adapter IR.

    Args:
        model: the segment.
        is_call: whether a kernel computes an operation CUSTOM, whose inputs have these types.
    """
    operands = model.operands
    numbers = {operand.name: number for number, operand in enumerate(operands)}

    def names(chosen: Iterable[int]) -> tuple[str, ...]:
        return tuple(operands[operand].name for operand in chosen if operand != ABSENT)

    def part(positions: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> Model:
        return submodel(model, positions, [numbers[name] for name in inputs], [numbers[name] for name in outputs])

    def read(operation: Operation) -> SegmentOperation:
        called = None
        types = tuple(operands[operand].type for operand in operation.inputs if operand != ABSENT)
        if operation.type == CUSTOM and is_call(operation, types):
            called = Called(CustomCall.of(operation.attributes), names(operation.inputs), types)
        computed = (
            input_index
            for input_index in operation.inputs
            if input_index != ABSENT and operands[input_index].value is None
        )
        return SegmentOperation(operation.type, names(computed), names(operation.outputs), called)

    operations = tuple(map(read, model.operations))
    needed_names = {name for operation in operations if operation.called for name in operation.called.inputs}
    needed_names.update(names(model.outputs))
    return Segment(
        operations,
        names(model.inputs),
        names(model.outputs),
        {
            constant_operand.name: Constant(constant_operand.type, constant_operand.value)
            for constant_operand in operands
            if constant_operand.value is not None and constant_operand.name in needed_names
        },
        part,
        lambda name: operands[numbers[name]].type,
    )
