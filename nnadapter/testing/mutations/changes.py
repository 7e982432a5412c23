"""Changes to models, and who is chosen for them: what the families of invalid models are written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from re import escape
from typing import Any

from nnadapter.ir import Lifetime, Model, Operand, OperandType, Operation, schema_of
from nnadapter.ir.schema import OperationSchema

Mutated = tuple[Model, str] | None
"""An invalid model, and a pattern for the message that it must be refused with; None where nothing could be spoilt."""
Mutation = Callable[[Random, Model], Mutated]
"""A family: a valid model made invalid, each time in the same way. Its name says which."""


def with_operand(model: Model, index: int, **changes: Any) -> Model:
    """The model with one operand changed."""
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(model, operands=tuple(operands))


def with_type(model: Model, index: int, **changes: Any) -> Model:
    """The model with the type of one operand changed."""
    return with_operand(model, index, type=replace(model.operands[index].type, **changes))


def with_operation(model: Model, position: int, **changes: Any) -> Model:
    """The model with one operation changed."""
    operations = list(model.operations)
    operations[position] = replace(operations[position], **changes)
    return replace(model, operations=tuple(operations))


def operands_of(model: Model, *lifetimes: Lifetime) -> list[int]:
    """Operands of these lifetimes, or all."""
    return [index for index, operand in enumerate(model.operands) if operand.lifetime in (lifetimes or (*Lifetime,))]


def made_by(model: Model) -> list[int]:
    """What operations make."""
    return [operand for operation in model.operations for operand in operation.outputs]


def named(model: Model, index: int) -> str:
    """A pattern for the name of an operand as messages show it."""
    return escape(repr(model.operands[index].name))


def positions(model: Model, fits: Callable[[Operation, OperationSchema], bool]) -> list[int]:
    """Operations that fit."""
    return [index for index, operation in enumerate(model.operations) if fits(operation, schema_of(operation.type))]


def at(model: Model, position: int) -> str:
    """A pattern for how messages about an operation begin."""
    return f"operation {position}, .*{model.operations[position].type}: "


def with_input(model: Model, type_: OperandType) -> tuple[Model, int]:
    """The model with one more input, and which operand it is."""
    operands = (*model.operands, Operand("another", type_, Lifetime.MODEL_INPUT))
    return replace(model, operands=operands, inputs=(*model.inputs, len(model.operands))), len(model.operands)
