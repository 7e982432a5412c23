"""Verification against the schema table, and memoized type inference.

Models often repeat layers, so `Inferences` interns types and memoizes results by the types' identity. Symbolic types
are excluded, because inference records guards for each use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnadapter.errors import InvalidModelError, close_names
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Lifetime, Operand, OperandType, QuantizedType
from nnadapter.ir.operand_checks import check_type, check_well_formed, normalized, quantized_results, result_types
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import Attribute, AttributeValue, OperationSchema, Role
from nnadapter.records import dataclass


@dataclass(frozen=True, slots=True)
class _CheckList:
    schema: OperationSchema
    roles: tuple[tuple[Role, int | None], ...]
    smallest: int
    largest: int | None
    defaults: dict[str, Any]
    required: frozenset[str]
    attributes: Mapping[str, Attribute]


_CHECK_LISTS: dict[str, _CheckList] = {}


def _check_list_of(schema: OperationSchema) -> _CheckList:
    check_list = _CHECK_LISTS.get(schema.type)
    if check_list is None or check_list.schema is not schema:
        check_list = _CHECK_LISTS[schema.type] = _make_check_list(schema)
    return check_list


def _make_check_list(schema: OperationSchema) -> _CheckList:
    position = {role.name: index for index, role in enumerate(schema.inputs)}
    variadic = bool(schema.inputs) and schema.inputs[-1].variadic
    return _CheckList(
        schema,
        tuple((role, None if role.same_dtype_as is None else position[role.same_dtype_as]) for role in schema.inputs),
        1 + max((index for index, role in enumerate(schema.inputs) if not role.optional), default=-1),
        None if variadic else len(schema.inputs),
        {attribute.name: attribute.default for attribute in schema.attributes},
        frozenset(attribute.name for attribute in schema.attributes if attribute.default is None),
        {attribute.name: attribute for attribute in schema.attributes},
    )


def check_inputs(schema: OperationSchema, types: Sequence[OperandType | None]) -> None:
    """Check number, presence and data types of inputs, and the rank of the first; `types` are None if absent.

    Raises InvalidModelError.
    """
    check_list = _check_list_of(schema)
    roles = check_list.roles
    if len(types) < check_list.smallest or (check_list.largest is not None and len(types) > check_list.largest):
        names = ", ".join(role.name + ("?" if role.optional else "…" if role.variadic else "") for role, _ in roles)
        expected = range_in_words(check_list.smallest, check_list.largest)
        raise InvalidModelError(f"{schema.type}: {len(types)} inputs, expected {expected} ({names})")
    last = len(roles) - 1
    for index, type_ in enumerate(types):
        role, same = roles[index if index < last else last]
        if type_ is None:
            if not role.optional:
                raise InvalidModelError(f"{schema.type}: input {role.name!r} is absent, expected an operand")
            continue
        if type_.dtype not in role.dtypes and not _stands_for_reals(schema, type_):
            raise InvalidModelError(
                f"{schema.type}: input {role.name!r} is {type_.dtype.value}, "
                f"expected one of {', '.join(sorted(role.dtypes))}"
            )
        if same is not None and not _stands_for_reals(schema, type_):
            other = types[same]
            if other is not None and type_.dtype is not other.dtype:
                raise InvalidModelError(
                    f"{schema.type}: input {role.name!r} is {type_.dtype.value}, "
                    f"expected {other.dtype.value} as {role.same_dtype_as!r}"
                )
    first = types[0] if types else None
    if first is not None and not schema.ranks[0] <= len(first.dimensions) <= schema.ranks[1]:
        raise InvalidModelError(
            f"{schema.type}: input {first} has rank {first.rank}, expected {range_in_words(*schema.ranks)}"
        )


def _stands_for_reals(schema: OperationSchema, type_: OperandType) -> bool:
    return schema.quantized is not None and type_.quantization is not None


def range_in_words(smallest: int, largest: int | None) -> str:
    """Return a range of ranks or counts as text: `4`, `2 to 5`, or `1 or more` if `largest` is None or at least 64."""
    if smallest == largest:
        return str(smallest)
    return f"{smallest} or more" if largest is None or largest >= 64 else f"{smallest} to {largest}"


def check_attributes(
    schema: OperationSchema, attribute_values: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    """Return all attributes, checked and converted, with defaults. A bool is no integer. Raises InvalidModelError."""
    check_list = _check_list_of(schema)
    complete: dict[str, AttributeValue] = check_list.defaults.copy()
    attributes = check_list.attributes
    for name, value in attribute_values.items():
        attribute = attributes.get(name)
        if attribute is None:
            raise InvalidModelError(f"{schema.type}: unknown attribute {name!r}; {close_names(name, attributes)}")
        complete[name] = _value(schema, attribute, value)
    if not check_list.required <= attribute_values.keys():
        missing = sorted(check_list.required - attribute_values.keys())
        raise InvalidModelError(f"{schema.type}: attributes {missing} are missing, expected values for them")
    return complete


def _value(schema: OperationSchema, attribute: Attribute, value: object) -> AttributeValue:
    try:
        result = normalized(attribute.kind, value)
    except TypeError:
        raise _wrong(schema, attribute, value, f"a value of kind {attribute.kind.value}") from None
    if attribute.choices and result not in attribute.choices:
        raise _wrong(schema, attribute, value, f"one of {list(attribute.choices)}")
    if attribute.length is not None and isinstance(result, tuple) and len(result) != attribute.length:
        raise _wrong(schema, attribute, value, f"{attribute.length} values")
    return result


def _wrong(schema: OperationSchema, attribute: Attribute, value: object, expected: str) -> InvalidModelError:
    return InvalidModelError(f"{schema.type}: attribute {attribute.name!r} is {value!r}, expected {expected}")


def verify(model: Model) -> None:
    """Check a complete model, unless it is verified. Models from `ModelBuilder` and their submodels already are.

    1. Every field has its declared Python type.
    2. Operands have unique names, valid types, and contents that match.
    3. Inputs and outputs match the operands' lifetimes.
    4. Operations are in topological order, and fit the schema, as do their outputs.

    Raises:
        InvalidModelError: the first error, with its operand or operation.
    """
    if model.is_verified:
        return
    check_well_formed(model)
    _check_names(model)
    for operand in model.operands:
        _check_operand(operand)
    _check_inputs_and_outputs(model)
    defined_operands = {index for index, operand in enumerate(model.operands) if operand.lifetime in _INPUT_LIFETIMES}
    for position, operation in enumerate(model.operations):
        try:
            _check_operation(model, operation, defined_operands)
        except InvalidModelError as error:
            raise InvalidModelError(f"operation {position}, from nodes {list(operation.origins)}: {error}") from None
        defined_operands.update(operation.outputs)
    for index, operand in enumerate(model.operands):
        if index not in defined_operands:
            raise InvalidModelError(
                f"no operation produces operand {index} {operand.name!r}, whose lifetime is {operand.lifetime.value}"
            )
    model.mark_verified()


_INPUT_LIFETIMES = frozenset({Lifetime.CONSTANT, Lifetime.MODEL_INPUT})


def _check_names(model: Model) -> None:
    first: dict[str, int] = {}
    for index, operand in enumerate(model.operands):
        other = first.setdefault(operand.name, index)
        if other != index:
            raise InvalidModelError(
                f"operands {other} and {index} are both called {operand.name!r}, expected names that differ"
            )


def _check_operand(operand: Operand) -> None:
    type_ = operand.type
    if any(size < 0 for size in type_.dimensions):
        raise InvalidModelError(f"operand {operand.name!r} is {type_}, expected no dimension below 0")
    check_type(operand.name, type_)
    value = operand.value
    if (value is None) is (operand.lifetime is Lifetime.CONSTANT):
        got = "no contents" if value is None else "contents"
        raise InvalidModelError(
            f"operand {operand.name!r} is {operand.lifetime.value} and has {got}, expected contents only for constants"
        )
    if value is not None and (value.dtype.name != type_.dtype.value or value.shape != type_.dimensions):
        raise InvalidModelError(
            f"constant {operand.name!r} holds {value.dtype.name}{list(value.shape)}, expected its type, {type_}"
        )


def _check_inputs_and_outputs(model: Model) -> None:
    for name, listed in (("input", model.inputs), ("output", model.outputs)):
        for index in listed:
            if not 0 <= index < len(model.operands):
                raise InvalidModelError(f"model {name} {index} is no operand, expected 0 to {len(model.operands) - 1}")
    if len(frozenset(model.inputs)) != len(model.inputs):
        raise InvalidModelError(f"model inputs are {list(model.inputs)}, expected no duplicates")
    _check_listed(model, model.inputs, Lifetime.MODEL_INPUT, frozenset({Lifetime.MODEL_INPUT}))
    _check_listed(model, model.outputs, Lifetime.MODEL_OUTPUT, _INPUT_LIFETIMES | {Lifetime.MODEL_OUTPUT})


def _check_listed(model: Model, listed: Sequence[int], lifetime: Lifetime, allowed: frozenset[Lifetime]) -> None:
    for index in listed:
        operand = model.operands[index]
        if operand.lifetime not in allowed:
            raise InvalidModelError(
                f"operand {index} {operand.name!r} is in the list of {lifetime.value}s and has the lifetime "
                f"{operand.lifetime.value}, expected {lifetime.value}"
            )
    chosen = frozenset(listed)
    for index, operand in enumerate(model.operands):
        if operand.lifetime is lifetime and index not in chosen:
            raise InvalidModelError(
                f"operand {index} {operand.name!r} has the lifetime {lifetime.value}, expected it in the list of "
                f"{lifetime.value}s"
            )


def _check_operation(model: Model, operation: Operation, defined_operands: set[int]) -> None:
    schema = schema_of(operation.type)
    for index in operation.inputs:
        if index != ABSENT and index not in defined_operands:
            raise InvalidModelError(f"{operation.type}: reads operand {index}, expected one defined earlier")
    types = tuple(model.type_of(index) for index in operation.inputs)
    check_inputs(schema, types)
    complete = check_attributes(schema, operation.attributes)
    if complete.keys() != operation.attributes.keys():
        missing = sorted(complete.keys() - operation.attributes.keys())
        raise InvalidModelError(f"{operation.type}: attributes {missing} are missing, expected all of the schema")
    inferred = schema.infer(types, complete)
    _check_outputs(model, operation, len(inferred), defined_operands)
    quantized = [model.operands[index].type.quantized for index in operation.outputs]
    for index, expected in zip(
        operation.outputs, quantized_results(schema, types, complete, inferred, quantized), strict=True
    ):
        _check_output(operation, model.operands[index], expected)


def _check_outputs(model: Model, operation: Operation, count: int, defined_operands: set[int]) -> None:
    if len(operation.outputs) != count:
        raise InvalidModelError(f"{operation.type}: {len(operation.outputs)} outputs, expected {count}")
    if len(frozenset(operation.outputs)) != count:
        raise InvalidModelError(f"{operation.type}: outputs are {list(operation.outputs)}, expected no duplicates")
    for index in operation.outputs:
        if not 0 <= index < len(model.operands):
            raise InvalidModelError(
                f"{operation.type}: produces operand {index}, expected 0 to {len(model.operands) - 1}"
            )
        if index in defined_operands:
            raise InvalidModelError(
                f"{operation.type}: produces operand {index} {model.operands[index].name!r}, expected an operand that "
                "is no input or constant and that no other operation produces"
            )


def _check_output(operation: Operation, operand: Operand, expected: OperandType) -> None:
    got = operand.type
    # quantization is declared, not inferred; `quantized_results` checked it
    if (got.dtype, got.dimensions, got.layout) != (expected.dtype, expected.dimensions, expected.layout):
        raise InvalidModelError(f"{operation.type}: output {operand.name!r} is {got}, expected {expected}")


Inferred = tuple[Mapping[str, AttributeValue], tuple[OperandType, ...]]
"""Complete attributes, and output types."""

_COMPARED = frozenset({str, int, bool})
"""Types in which equal values are identical; 0.0 == -0.0."""


def inferred(
    type_: str,
    types: Sequence[OperandType | None],
    attributes: Mapping[str, AttributeValue],
    quantized: Sequence[QuantizedType | None] = (),
) -> Inferred:
    """Check an operation and infer its results, uncached."""
    schema = schema_of(type_)
    check_inputs(schema, types)
    complete = check_attributes(schema, attributes)
    return complete, result_types(schema, types, complete, quantized)


class Inferences:
    """Cache of checked operations and their output types."""

    def __init__(self) -> None:
        self._types: dict[OperandType, OperandType] = {}
        self._shared: dict[int, OperandType] = {}
        """Interned types by id. The references prevent reuse of ids."""
        self._known: dict[object, Inferred] = {}

    def of(
        self,
        type_: str,
        types: Sequence[OperandType | None],
        attributes: Mapping[str, AttributeValue],
        quantized: Sequence[QuantizedType | None] = (),
    ) -> Inferred:
        """Check an operation. Return its complete attributes, for the caller to modify, and output types.

        Raises InvalidModelError.
        """
        key = None if any(quantized) else _key(type_, types, attributes)
        cache_entry = self._known.get(key) if key is not None else None
        if cache_entry is not None:
            return {**cache_entry[0]}, cache_entry[1]
        complete, output_types = inferred(type_, types, attributes, quantized)
        results = tuple(map(self.shared, output_types))
        if key is not None and all(
            id(operand_type) in self._shared for operand_type in (*types, *results) if operand_type is not None
        ):
            self._known[key] = {**complete}, results
        return complete, results

    def shared(self, type_: OperandType) -> OperandType:
        """Return the interned type, identical for equal types. Symbolic types are not interned."""
        if not all(type(size) is int for size in type_.dimensions):
            return type_
        shared_type = self._types.setdefault(type_, type_)
        self._shared[id(shared_type)] = shared_type
        return shared_type


def _key(
    type_: str, types: Sequence[OperandType | None], attributes: Mapping[str, AttributeValue]
) -> tuple[object, ...] | None:
    if not _COMPARED.issuperset(map(type, attributes.values())):
        return None
    return (type_, *map(id, types), *((name, type(value), value) for name, value in attributes.items()))
