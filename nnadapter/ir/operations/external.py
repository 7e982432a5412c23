"""External operations: schema rows from entry points of the group `nnadapter.operations`.

The entry point's name is the operation's type; its value (`package.module:ROW`) is an `OperationSchema` with
`definition`. Entry points load when an operation type is missing from the schema table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nnadapter.errors import FAILURES, DriverError, DriverWarning, InvalidModelError, describe
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operand_checks import checked_type, normalized
from nnadapter.ir.schema import Attribute, Attributes, Definition, FlopsRule, OperationSchema, Role, ShapeRule
from nnadapter.process.packages import PlugIn, PlugIns
from nnadapter.records import replace


def checked_row(value: object, plug_in: PlugIn) -> OperationSchema:
    """Check the row of an external operation, and return it with wrapped functions.

    1. Errors in functions become DriverErrors that name the distribution, except InvalidModelError from a shape rule,
       and IndexError, ValueError and MemoryError from a definition.
    2. A FLOP formula that fails returns 0 and warns.
    3. A definition gets read-only arrays.

    Raises ValueError for an invalid row.
    """
    if not isinstance(value, OperationSchema):
        raise ValueError(f"{plug_in.target} is {type(value).__name__}, expected an nnadapter.ir.OperationSchema")
    if value.type != plug_in.name:
        raise ValueError(f"{plug_in.target} defines the operation {value.type!r}, expected {plug_in.name!r}")
    if value.definition is None:
        raise ValueError(f"{plug_in.target} has no definition, expected a function in numpy")
    for field, (is_sound, expected) in _FIELDS.items():
        if not is_sound(value):
            raise ValueError(f"{plug_in.target} has {field} {getattr(value, field)!r}, expected {expected}")
    return replace(
        value,
        infer=_infer(value, plug_in),
        flops=_flops(value, plug_in),
        definition=_definition(value.definition, value, plug_in),
    )


def _are_inputs(row: OperationSchema) -> bool:
    roles = row.inputs
    if not (isinstance(roles, tuple) and roles and all(isinstance(role, Role) for role in roles)):
        return False
    names = [role.name for role in roles]
    single = not any(role.variadic for role in roles[:-1])
    return single and len({*names}) == len(names) and all(role.same_dtype_as in (None, *names) for role in roles)


def _are_attributes(row: OperationSchema) -> bool:
    attributes = row.attributes
    if not (isinstance(attributes, tuple) and all(isinstance(attribute, Attribute) for attribute in attributes)):
        return False
    return len({attribute.name for attribute in attributes}) == len(attributes) and all(map(_has_default, attributes))


def _has_default(attribute: Attribute) -> bool:
    try:
        return attribute.default is None or type(normalized(attribute.kind, attribute.default)) is type(
            attribute.default
        )
    except (KeyError, TypeError):
        return False


def _are_outputs(row: OperationSchema) -> bool:
    names = row.outputs
    return isinstance(names, tuple) and bool(names) and all(isinstance(name, str) for name in names)


def _are_ranks(row: OperationSchema) -> bool:
    ranks = row.ranks
    return isinstance(ranks, tuple) and [type(rank) for rank in ranks] == [int, int] and 0 <= ranks[0] <= ranks[1]


_FIELDS: Mapping[str, tuple[Callable[[OperationSchema], bool], str]] = {
    "inputs": (
        _are_inputs,
        "a tuple of one Role or more, of different names, only the last one variadic, `same_dtype_as` naming one of "
        "them",
    ),
    "attributes": (
        _are_attributes,
        "a tuple of Attribute, of different names, each default of its kind (lists are tuples)",
    ),
    "outputs": (_are_outputs, "a tuple of one name or more"),
    "ranks": (_are_ranks, "the smallest and the largest rank, such as (0, 64)"),
    "infer": (lambda row: callable(row.infer), "a function"),
    "flops": (lambda row: callable(row.flops), "a function"),
    "definition": (lambda row: callable(row.definition), "a function in numpy"),
    "source": (lambda row: isinstance(row.source, str), "a text"),
}


def _infer(row: OperationSchema, plug_in: PlugIn) -> ShapeRule:
    rule = f"the shape rule of {row.type} of {plug_in.distribution}"

    def infer(types: Sequence[OperandType | None], attributes: Attributes) -> tuple[OperandType, ...]:
        try:
            results = tuple(row.infer(types, attributes))
        except InvalidModelError:
            raise
        except FAILURES as error:
            raise DriverError(f"{rule} failed: {describe(error)}; ask its vendor") from error
        names = [*row.outputs, *(f"{row.outputs[-1]} {position}" for position in range(1, len(results)))]
        if not (results if row.variadic_outputs else len(results) == len(row.outputs)):
            raise DriverError(
                f"{rule} returned {results!r}, expected an OperandType for each output ({', '.join(row.outputs)}); ask "
                "its vendor"
            )
        try:
            return tuple(map(checked_type, names, results))
        except InvalidModelError as error:
            raise DriverError(f"{rule} returned invalid types: {error}; ask its vendor") from error

    return infer


def _flops(row: OperationSchema, plug_in: PlugIn) -> FlopsRule:
    def flops(types: Sequence[OperandType | None], results: Sequence[OperandType], attributes: Attributes) -> int:
        try:
            count = int(row.flops(types, results, attributes))
        except FAILURES as error:
            problem = f"failed: {describe(error)}"
        else:
            if count >= 0:
                return count
            problem = f"are {count}, expected 0 or more"
        message = f"the FLOPs of {row.type} of {plug_in.distribution} {problem}"
        warnings.warn(f"{message}; they are counted as 0, so ask its vendor", DriverWarning, stacklevel=2)
        return 0

    return flops


def _definition(function: Definition, row: OperationSchema, plug_in: PlugIn) -> Definition:
    @wraps(function)  # so that `nnadapter ops --describe` prints the original
    def definition(*inputs: Any, **attributes: Any) -> Any:
        try:
            return function(*map(_unwritable, inputs), **attributes)
        except (IndexError, ValueError, MemoryError):
            raise
        except FAILURES as error:
            raise DriverError(
                f"the definition of {row.type} of {plug_in.distribution} failed: {describe(error)}; ask its vendor"
            ) from error

    return definition


def _unwritable(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


GROUP = "nnadapter.operations"


def brought_operations(reserved: frozenset[str]) -> PlugIns[OperationSchema]:
    """Return the operations of installed packages, which cannot redefine the types in `reserved`."""

    def problem(name: str) -> str:
        if name in reserved:
            return "nnadapter has an operation of that name; its vendor must choose another"
        if not name.isidentifier() or not name.isascii() or name != name.upper():
            return "it is not a valid operation name, such as ACME_SWISH; its vendor must choose another"
        return ""

    return PlugIns(GROUP, checked_row, problem)
