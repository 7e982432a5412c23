"""What an op's schema says of every node of it: attributes and their types, how many inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import onnx
import onnx.defs

from nnadapter.onnx.further_schemas import FurtherSchema, bounds_of, further_schema
from nnadapter.onnx.graphs import node_of
from nnadapter.onnx.signature import type_name
from nnadapter.process.cache import remembered
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE
from partition.graph import Node

_INTERNAL = "__"
"""Attributes whose names begin so are anybody's own; ONNX's checker passes them over."""
_UNBOUNDED = 2**31 - 1
"""What a schema says of the number of values where any number will do."""
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_FORMS = 4096
"""Of so many forms of nodes it is remembered what is wrong with them: models have few, in many nodes."""
_ALL_OR_FEWEST = frozenset({"BatchNormalization"})
"""Ops that give all outputs or the least number, and none between; schemas do not tell it in Python."""
_ANY_ATTRIBUTES = frozenset({"LayerNormalization"})
"""Ops that may state attributes that their schemas have not, as onnx and ONNX Runtime allow; not told in Python."""


@dataclass(frozen=True, slots=True)
class _SchemaRules:
    """The part of a schema that is compared."""

    operator_name: str
    """The op with its version, for messages."""
    types: dict[str, int]
    """Attribute name -> its type, as `AttributeProto.AttributeType` counts them."""
    required: tuple[str, ...]
    """Names of the attributes that every node has."""
    inputs: tuple[int, int]
    """Least and greatest number."""
    outputs: tuple[int, int]
    """Least and greatest number."""
    any_attributes: bool
    """Attributes that the schema has not do no harm."""
    all_or_fewest: bool
    """There is no number of outputs between the two."""
    present: tuple[int, ...]
    """Positions of inputs that may not be left out."""


def contradiction_of(proto: onnx.NodeProto, since_version: int, node: Node | None = None) -> str:
    """Return how a node contradicts its schema, in a sentence; empty if it does not, or if there is no such schema.

    1. Every attribute is one that the schema has, of its type, stated once; those that are required are there.
    2. There are as many inputs and outputs as the schema allows, absent ones that are named counted.
    3. An input that is not optional is not absent.

    What values mean is the converters' to judge.

    Args:
        proto: the node; graphs inside are not looked at.
        since_version: of its schema, 0 if it has none.
        node: the same node of a graph, where it has been read already.

    Source: onnx.checker.check_node, which ONNX Runtime asks as well.
    """
    if not since_version:
        return ""
    node = node_of(proto, proto.name) if node is None else node
    inputs = node.inputs
    absent = tuple(position for position, name in enumerate(inputs) if not name) if "" in inputs else ()
    stated = tuple((attribute.name, attribute.type) for attribute in proto.attribute) if proto.attribute else ()
    form = stated, len(inputs), len(node.outputs), absent
    return _contradiction(node.op_type, since_version, node.domain, form)


@remembered(_FORMS)
def may_take_types(op_type: str, since_version: int, domain: str, dtypes: tuple[str | None, ...]) -> bool:
    """Return whether a schema of onnx allows inputs of these data types; None stands for absent and unknown ones.

    Data types other than tensors' are not compared. False if onnx has no such schema.
    """
    try:
        schema = onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return False
    bound: dict[str, str] = {}
    for position, dtype in enumerate(dtypes):
        if dtype is None or dtype not in ELEMENT_TYPE_OF_DTYPE:
            continue
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if type_name(dtype) not in formal.types:
            return False
        if formal.is_homogeneous and bound.setdefault(formal.type_str, dtype) != dtype:
            return False
    return True


class _NodeForm(NamedTuple):
    """What of a node is compared."""

    stated: tuple[tuple[str, int], ...]
    """Its attributes' names and types."""
    inputs: int
    outputs: int
    absent: tuple[int, ...]
    """Positions of inputs that are left out."""


@remembered(_FORMS)
def _contradiction(
    op_type: str, since_version: int, domain: str, form: tuple[tuple[tuple[str, int], ...], int, int, tuple[int, ...]]
) -> str:
    """The form is that of `_NodeForm`; most are known, and a plain tuple is made and compared in no time."""
    rules = _rules(op_type, since_version, domain)
    return next(_contradictions(_NodeForm(*form), rules), "") if rules else ""


def _contradictions(form: _NodeForm, rules: _SchemaRules) -> Iterator[str]:
    stated: set[str] = set()
    for name, type_ in form.stated:
        expected = rules.types.get(name)
        if name in stated:
            yield f"attribute {name!r} of {rules.operator_name} is stated twice; expected it once"
        elif expected is None and not (rules.any_attributes or name.startswith(_INTERNAL)):
            attribute_names = ", ".join(sorted(rules.types)) or "no attribute"
            yield f"attribute {name!r} is none of {rules.operator_name}, which has {attribute_names}"
        elif expected not in (None, type_):
            stated_type, expected_type = map(onnx.AttributeProto.AttributeType.Name, (type_, expected))
            yield f"attribute {name!r} of {rules.operator_name} is of type {stated_type}; expected {expected_type}"
        stated.add(name)
    for name in rules.required:
        if name not in stated:
            yield f"attribute {name!r} of {rules.operator_name} is missing; every node has to state it"
    for direction, count, (least, most) in (
        ("inputs", form.inputs, rules.inputs),
        ("outputs", form.outputs, rules.outputs),
    ):
        if not least <= count <= most:
            yield f"{rules.operator_name} has {count} {direction}; expected {_counted(least, most)}"
    least, most = rules.outputs
    if rules.all_or_fewest and least < form.outputs < most:
        yield f"{rules.operator_name} has {form.outputs} outputs; expected {least} or {most}"
    for position in rules.present:
        if position in form.absent:
            yield f"input {position} of {rules.operator_name} is absent; expected a value"


def _counted(least: int, most: int) -> str:
    if most >= _UNBOUNDED:
        return f"{least} or more"
    return f"{least}" if least == most else f"{least} to {most}"


@remembered(4096)
def _rules(op_type: str, since_version: int, domain: str) -> _SchemaRules | None:
    try:
        schema = onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return _further_rules(further_schema(domain, op_type))
    return _SchemaRules(
        operator_name=f"{op_type} of schema version {schema.since_version}",
        types={name: int(attribute.type.value) for name, attribute in schema.attributes.items()},  # type: ignore[attr-defined]
        required=tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        inputs=(schema.min_input, schema.max_input),
        outputs=(schema.min_output, schema.max_output),
        any_attributes=op_type in _ANY_ATTRIBUTES and not domain,
        all_or_fewest=op_type in _ALL_OR_FEWEST and not domain,
        present=tuple(position for position, parameter in enumerate(schema.inputs) if parameter.option == _SINGLE),
    )


def _further_rules(schema: FurtherSchema | None) -> _SchemaRules | None:
    if schema is None:
        return None
    return _SchemaRules(
        operator_name=f"{schema.op_type} of schema version {schema.since_version}",
        types=dict(schema.types),
        required=schema.required,
        inputs=bounds_of(schema.inputs),
        outputs=bounds_of(schema.outputs),
        any_attributes=False,
        all_or_fewest=False,
        present=tuple(position for position, name in enumerate(schema.inputs) if name[-1] not in "?."),
    )
