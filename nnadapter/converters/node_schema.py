"""What an op's schema says of every node of it: attributes and their types, how many inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import onnx
import onnx.defs

_INTERNAL = "__"
"""Attributes whose names begin so are anybody's own; ONNX's checker passes them over."""
_UNBOUNDED = 2**31 - 1
"""What a schema says of the number of values where any number will do."""
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single


_ALL_OR_FEWEST = frozenset({"BatchNormalization"})
"""Ops that give all outputs or the least number, and none between; schemas do not tell it in Python."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The part of a schema that is compared."""

    called: str
    """The op with its version, for messages."""
    types: dict[str, int]
    """Attribute name -> its type, as `AttributeProto.AttributeType` counts them."""
    required: tuple[str, ...]
    """Names of the attributes that every node has."""
    inputs: tuple[int, int]
    """Least and greatest number."""
    outputs: tuple[int, int]
    """Least and greatest number."""
    all_or_fewest: bool
    """There is no number of outputs between the two."""
    present: tuple[int, ...]
    """Positions of inputs that may not be left out."""


def contradiction_of(proto: onnx.NodeProto, since_version: int) -> str:
    """Return how a node contradicts its schema, in a sentence; empty if it does not, or if there is no such schema.

    1. Every attribute is one that the schema has, of its type, stated once; those that are required are there.
    2. There are as many inputs and outputs as the schema allows, absent ones that are named counted.
    3. An input that is not optional is not absent.

    What values mean is the converters' to judge.

    Args:
        proto: the node; graphs inside are not looked at.
        since_version: of its schema, 0 if it has none.

    Source: onnx.checker.check_node, which ONNX Runtime asks as well.
    """
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    rules = _rules(proto.op_type, since_version, domain) if since_version else None
    return next(_contradictions(proto, rules), "") if rules else ""


def _contradictions(proto: onnx.NodeProto, rules: _Rules) -> Iterator[str]:
    stated: set[str] = set()
    for attribute in proto.attribute:
        expected = rules.types.get(attribute.name)
        if attribute.name in stated:
            yield f"attribute {attribute.name!r} of {rules.called} is stated twice; expected it once"
        elif expected is None and not attribute.name.startswith(_INTERNAL):
            known = ", ".join(sorted(rules.types)) or "no attribute"
            yield f"attribute {attribute.name!r} is none of {rules.called}, which has {known}"
        elif expected not in (None, attribute.type):
            found, wanted = map(onnx.AttributeProto.AttributeType.Name, (attribute.type, expected))
            yield f"attribute {attribute.name!r} of {rules.called} is of type {found}; expected {wanted}"
        stated.add(attribute.name)
    for name in rules.required:
        if name not in stated:
            yield f"attribute {name!r} of {rules.called} is missing; every node has to state it"
    for what, names, (least, most) in (("inputs", proto.input, rules.inputs), ("outputs", proto.output, rules.outputs)):
        if not least <= len(names) <= most:
            yield f"{rules.called} has {len(names)} {what}; expected {_counted(least, most)}"
    least, most = rules.outputs
    if rules.all_or_fewest and least < len(proto.output) < most:
        yield f"{rules.called} has {len(proto.output)} outputs; expected {least} or {most}"
    for position in rules.present:
        if position < len(proto.input) and not proto.input[position]:
            yield f"input {position} of {rules.called} is absent; expected a value"


def _counted(least: int, most: int) -> str:
    if most >= _UNBOUNDED:
        return f"{least} or more"
    return f"{least}" if least == most else f"{least} to {most}"


@cache
def _rules(op_type: str, since_version: int, domain: str) -> _Rules | None:
    try:
        schema = onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return None
    return _Rules(
        called=f"{op_type} of schema version {schema.since_version}",
        types={name: int(each.type.value) for name, each in schema.attributes.items()},  # type: ignore[attr-defined]
        required=tuple(name for name, each in schema.attributes.items() if each.required),
        inputs=(schema.min_input, schema.max_input),
        outputs=(schema.min_output, schema.max_output),
        all_or_fewest=op_type in _ALL_OR_FEWEST and not domain,
        present=tuple(position for position, each in enumerate(schema.inputs) if each.option == _SINGLE),
    )
