"""Checks of operations against the schema table, and of a whole model from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.names import close_names
from nnadapter.ir.operand import OperandType
from nnadapter.ir.schema import Attribute, AttributeValue, Kind, OperationSchema, Role


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a row says, laid out so that checking one operation costs a few microseconds."""

    schema: OperationSchema
    roles: tuple[tuple[Role, int | None], ...]
    smallest: int
    largest: int | None
    defaults: dict[str, Any]
    required: frozenset[str]
    attributes: Mapping[str, Attribute]


_PLANS: dict[str, _Plan] = {}


def _plan_of(schema: OperationSchema) -> _Plan:
    plan = _PLANS.get(schema.type)
    if plan is None or plan.schema is not schema:
        plan = _PLANS[schema.type] = _make_plan(schema)
    return plan


def _make_plan(schema: OperationSchema) -> _Plan:
    position = {role.name: index for index, role in enumerate(schema.inputs)}
    variadic = bool(schema.inputs) and schema.inputs[-1].variadic
    return _Plan(
        schema,
        tuple((role, None if role.same is None else position[role.same]) for role in schema.inputs),
        1 + max((index for index, role in enumerate(schema.inputs) if not role.optional), default=-1),
        None if variadic else len(schema.inputs),
        {attribute.name: attribute.default for attribute in schema.attributes},
        frozenset(attribute.name for attribute in schema.attributes if attribute.default is None),
        {attribute.name: attribute for attribute in schema.attributes},
    )


def check_inputs(schema: OperationSchema, types: Sequence[OperandType | None]) -> None:
    """Check the inputs of one operation: how many, which may be absent, their data types and the first one's rank.

    Args:
        schema: the operation's row.
        types: by role, None where an optional input is absent; absent ones at the end may be left out.

    Raises:
        InvalidModelError: they do not fit the row.
    """
    plan = _plan_of(schema)
    roles = plan.roles
    if len(types) < plan.smallest or (plan.largest is not None and len(types) > plan.largest):
        raise InvalidModelError(f"{schema.type}: {len(types)} inputs, expected {_counts(plan)}")
    last = len(roles) - 1
    for index, type_ in enumerate(types):
        role, same = roles[index if index < last else last]
        if type_ is None:
            if not role.optional:
                raise InvalidModelError(f"{schema.type}: input {role.name!r} is absent, expected an operand")
            continue
        if type_.dtype not in role.dtypes:
            raise InvalidModelError(
                f"{schema.type}: input {role.name!r} is {type_.dtype.value}, expected {_names(role.dtypes)}"
            )
        if same is not None:
            _check_same(schema, role, type_, types[same])
    first = types[0] if types else None
    if first is not None and not schema.ranks[0] <= len(first.dimensions) <= schema.ranks[1]:
        raise InvalidModelError(f"{schema.type}: input {first} has rank {first.rank}, expected {_span(schema.ranks)}")


def _check_same(schema: OperationSchema, role: Role, type_: OperandType, other: OperandType | None) -> None:
    if other is not None and type_.dtype is not other.dtype:
        raise InvalidModelError(
            f"{schema.type}: input {role.name!r} is {type_.dtype.value}, expected {other.dtype.value} as {role.same!r}"
        )


def _counts(plan: _Plan) -> str:
    names = ", ".join(role.name + ("?" if role.optional else "…" if role.variadic else "") for role, _ in plan.roles)
    span = f"{plan.smallest} or more" if plan.largest is None else _span((plan.smallest, plan.largest))
    return f"{span} ({names})"


def _span(limits: tuple[int, int]) -> str:
    smallest, largest = limits
    if smallest == largest:
        return str(smallest)
    return f"{smallest} or more" if largest >= 64 else f"{smallest} to {largest}"


def _names(dtypes: frozenset[Any]) -> str:
    return "one of " + ", ".join(sorted(dtype.value for dtype in dtypes))


def check_attributes(schema: OperationSchema, given: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Check the attributes of one operation and fill in the defaults.

    Lists, numpy arrays and numpy numbers become tuples and Python numbers; a bool is not an int.

    Returns:
        Every attribute of the row, in the row's order.

    Raises:
        InvalidModelError: a name is unknown, a required one is missing, or a value has not its kind, choice or length.
    """
    plan = _plan_of(schema)
    complete: dict[str, AttributeValue] = plan.defaults.copy()
    attributes = plan.attributes
    for name, value in given.items():
        attribute = attributes.get(name)
        if attribute is None:
            raise InvalidModelError(f"{schema.type}: unknown attribute {name!r}; {close_names(name, attributes)}")
        complete[name] = _value(schema, attribute, value)
    if not plan.required <= given.keys():
        missing = sorted(plan.required - given.keys())
        raise InvalidModelError(f"{schema.type}: attributes {missing} are missing, expected values for them")
    return complete


def _value(schema: OperationSchema, attribute: Attribute, value: object) -> AttributeValue:
    try:
        result = _NORMALISE[attribute.kind](value)
    except TypeError:
        raise _wrong(schema, attribute, value, f"a value of kind {attribute.kind.value}") from None
    if attribute.choices and result not in attribute.choices:
        raise _wrong(schema, attribute, value, f"one of {list(attribute.choices)}")
    if attribute.length is not None and len(result) != attribute.length:
        raise _wrong(schema, attribute, value, f"{attribute.length} values")
    return result  # type: ignore[no-any-return]


def _wrong(schema: OperationSchema, attribute: Attribute, value: object, expected: str) -> InvalidModelError:
    return InvalidModelError(f"{schema.type}: attribute {attribute.name!r} is {value!r}, expected {expected}")


def _boolean(value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError


def _integer(value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError


def _real(value: object) -> float:
    if type(value) is float:
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _string(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError


def _integers(value: object) -> tuple[int, ...]:
    return tuple(map(_integer, _items(value)))


def _reals(value: object) -> tuple[float, ...]:
    return tuple(map(_real, _items(value)))


def _items(value: object) -> Sequence[object]:
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    raise TypeError


_NORMALISE: Mapping[Kind, Any] = MappingProxyType(
    {
        Kind.BOOL: _boolean,
        Kind.INT: _integer,
        Kind.FLOAT: _real,
        Kind.STRING: _string,
        Kind.INTS: _integers,
        Kind.FLOATS: _reals,
    }
)
