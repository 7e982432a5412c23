"""What the schema says of an operation, remembered for the others of its kind in the same model.

Layers repeat, so most operations of a large model are of a kind that was seen before: of the same type and attributes,
reading operands of the same types. Types are told apart by identity, which takes no time: `Inferences` hands out one
object for all equal ones. Only what holds no traced number is remembered, since a trace has to be asked each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.ir.operand import OperandType, QuantizedType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.quantized import result_types
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verifying import check_attributes, check_inputs

Inferred = tuple[Mapping[str, AttributeValue], tuple[OperandType, ...]]
"""Every attribute of an operation, and the types of its results."""

_COMPARED = frozenset({str, int, bool})
"""Kinds of attributes that are the same if they are equal and of one kind; 0.0 and -0.0 are not."""


def inferred(
    type_: str,
    types: Sequence[OperandType | None],
    attributes: Mapping[str, AttributeValue],
    quantized: Sequence[QuantizedType | None] = (),
) -> Inferred:
    """Check an operation against the schema; see `Inferences.of`, which remembers."""
    schema = schema_of(type_)
    check_inputs(schema, types)
    complete = check_attributes(schema, attributes)
    return complete, result_types(schema, types, complete, quantized)


class Inferences:
    """Checks operations against the schema and infers their results, each kind of operation once."""

    def __init__(self) -> None:
        self._types: dict[OperandType, OperandType] = {}
        self._shared: dict[int, OperandType] = {}
        """The same objects by their identities, and kept, so that no other one gets such an identity."""
        self._known: dict[object, Inferred] = {}

    def of(
        self,
        type_: str,
        types: Sequence[OperandType | None],
        attributes: Mapping[str, AttributeValue],
        quantized: Sequence[QuantizedType | None] = (),
    ) -> Inferred:
        """Return the complete attributes and the types of the results; the attributes are the caller's own.

        Args:
            type_: a row of the schema table.
            types: of the inputs by role, None where an optional one is absent.
            attributes: by name; what is not given takes its default.
            quantized: by output, data type and quantization of those that are quantized.

        Raises:
            InvalidModelError: unknown type, or inputs, attributes or results that do not fit the schema.
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
        """The one object for types equal to this one; the same object if it is traced."""
        if not all(type(size) is int for size in type_.dimensions):
            return type_
        shared_type = self._types.setdefault(type_, type_)
        self._shared[id(shared_type)] = shared_type
        return shared_type


def _key(
    type_: str, types: Sequence[OperandType | None], attributes: Mapping[str, AttributeValue]
) -> tuple[object, ...] | None:
    """What tells kinds of operations apart; None where attributes are more than names and whole numbers."""
    if not attributes:
        return (type_, *map(id, types))
    if not _COMPARED.issuperset(map(type, attributes.values())):
        return None
    return (type_, *map(id, types), *((name, type(value), value) for name, value in attributes.items()))
