"""Schema rows of operations, and access to their attributes and operands in shape rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.schema import Attribute, Attributes, FlopsRule, OperationSchema, Role, ShapeRule


def integer(attributes: Attributes, name: str) -> int:
    """An attribute of kind INT."""
    return cast("int", attributes[name])


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    """An attribute of kind INTS."""
    return cast("tuple[int, ...]", attributes[name])


def floats(attributes: Attributes, name: str) -> tuple[float, ...]:
    """An attribute of kind FLOATS."""
    return cast("tuple[float, ...]", attributes[name])


def string(attributes: Attributes, name: str) -> str:
    """An attribute of kind STRING."""
    return cast("str", attributes[name])


def number(attributes: Attributes, name: str) -> float:
    """An attribute of kind FLOAT."""
    return cast("float", attributes[name])


Types = Sequence[OperandType | None]
"""Types of an operation's inputs by role, None where an optional one is absent."""


def row(
    type_: str,
    inputs: tuple[Role, ...],
    infer: ShapeRule,
    flops: FlopsRule,
    source: str,
    *,
    attributes: tuple[Attribute, ...] = (),
    outputs: tuple[str, ...] = ("output",),
    variadic_outputs: bool = False,
    ranks: tuple[int, int] = (0, 64),
) -> OperationSchema:
    """Return a row whose shape rule says the operation's type in front of whatever it has to complain about."""
    return OperationSchema(
        type=type_,
        inputs=inputs,
        attributes=attributes,
        outputs=outputs,
        variadic_outputs=variadic_outputs,
        ranks=ranks,
        infer=_named(type_, infer),
        flops=flops,
        source=source,
    )


def _named(type_: str, rule: ShapeRule) -> ShapeRule:
    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        try:
            return rule(types, attributes)
        except InvalidModelError as error:
            raise InvalidModelError(f"{type_}: {error}") from None

    return infer


def present(types: Types, position: int) -> OperandType:
    """The type of an input that `check_inputs` has seen to be there."""
    type_ = types[position]
    assert type_ is not None
    return type_


def pair(dtypes: frozenset[DataType]) -> tuple[Role, Role]:
    """The roles x and y of an operation of two inputs of one data type."""
    return Role("x", dtypes), Role("y", dtypes, same_dtype_as="x")


def no_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """The formula of operations that only move data."""
    return 0


def per_output(steps: int) -> FlopsRule:
    """The formula of elementwise operations: so many arithmetic steps for each element of the first output."""

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        return steps * outputs[0].size

    return flops


def per_input(steps: int) -> FlopsRule:
    """The formula of reductions: so many arithmetic steps for each element of the first input."""

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        return steps * present(types, 0).size

    return flops
