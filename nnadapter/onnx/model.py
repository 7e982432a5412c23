"""Nodes and models without protobuf, checked against their schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.defs

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, OperandType
from nnadapter.onnx.graphs import node_of, opsets_of, read_graph
from nnadapter.onnx.references import array_of, is_reference, without_contents
from nnadapter.onnx.schemas import FurtherSchema, Refusal, bounds_of, further_schema, since_version, value_of_attribute
from nnadapter.onnx.signature import type_name
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass, field
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Graph, GraphError, Node, Reason, Unsupported, Value

_INTERNAL = "__"
"""Prefix of attributes that ONNX's checker ignores."""
_UNBOUNDED = 2**31 - 1
"""Schemas' upper bound for variadic parameters."""
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_FORMS = 4096
_ALL_OR_FEWEST = frozenset({"BatchNormalization"})
"""Ops with all outputs or the minimum, which schemas do not express."""
_ANY_ATTRIBUTES = frozenset({"LayerNormalization"})
"""Ops that onnx and ONNX Runtime accept with attributes absent from their schemas."""


@dataclass(frozen=True, slots=True)
class _SchemaRules:
    operator_name: str
    types: dict[str, int]
    """Attribute name -> `AttributeProto.AttributeType`."""
    required: tuple[str, ...]
    inputs: tuple[int, int]
    """Least and greatest number of inputs."""
    outputs: tuple[int, int]
    any_attributes: bool
    all_or_fewest: bool
    present: tuple[int, ...]


def contradiction_of(proto: onnx.NodeProto, since_version: int, node: Node | None = None) -> str:
    """Return how a node violates its schema, in a sentence; empty if it conforms or has no schema.

    Names and types of attributes, and numbers of inputs and outputs, are checked; attribute values and subgraphs are
    not. Source: onnx.checker.check_node, which ONNX Runtime also applies.
    """
    if not since_version:
        return ""
    node = node_of(proto, proto.name) if node is None else node
    inputs = node.inputs
    absent = tuple(position for position, name in enumerate(inputs) if not name) if "" in inputs else ()
    stated = tuple((attribute.name, attribute.type) for attribute in proto.attribute) if proto.attribute else ()
    form = stated, len(inputs), len(node.outputs), absent
    return _contradiction(node.op_type, since_version, node.domain, form)


@memoize(_FORMS)
def may_take_types(op_type: str, since_version: int, domain: str, dtypes: tuple[str | None, ...]) -> bool:
    """Return whether onnx's schema of an op allows these input types; None is an absent or unknown type."""
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
    stated: tuple[tuple[str, int], ...]
    inputs: int
    outputs: int
    absent: tuple[int, ...]


@memoize(_FORMS)
def _contradiction(
    op_type: str, since_version: int, domain: str, form: tuple[tuple[tuple[str, int], ...], int, int, tuple[int, ...]]
) -> str:
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
            yield f"attribute {name!r} is not defined by {rules.operator_name}, which has {attribute_names}"
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


@memoize(4096)
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


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """Node with attributes as Python values."""

    name: str
    op_type: str
    domain: str
    """Empty for ONNX's own."""
    since_version: int
    """0 if there is no schema."""
    inputs: tuple[str, ...]
    """Names of inputs, empty if absent."""
    outputs: tuple[str, ...]
    """Names of outputs, empty if unused."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """int, float, str, tuples, numpy arrays; protobuf messages for subgraphs."""
    contradiction: str = ""
    """Schema violation, or empty."""

    @property
    def bodies(self) -> tuple[tuple[str, Counter[str]], ...]:
        """Names of subgraph attributes, with counts of op types at any depth."""
        if not self.attributes:
            return ()
        graphs = ((name, value) for name, value in self.attributes.items() if hasattr(value, "node"))
        return tuple((name, _op_types(graph)) for name, graph in graphs)

    @property
    def is_standard(self) -> bool:
        return not (self.domain or self.contradiction)

    def input(self, position: int) -> str:
        return self.inputs[position] if position < len(self.inputs) else ""

    def output(self, position: int) -> str:
        return self.outputs[position] if position < len(self.outputs) else ""

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute, or raise Refusal if it is missing without default, or not an integer."""
        value = self.attributes.get(name, default)
        if type(value) is not int:
            raise self._mismatch(name, value, "one integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a floating-point attribute; raises as `integer`."""
        value = self.attributes.get(name, default)
        if type(value) is not float:
            raise self._mismatch(name, value, "one floating-point number")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string attribute; raises as `integer`."""
        value = self.attributes.get(name, default)
        if type(value) is not str:
            raise self._mismatch(name, value, "a string")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of integers, or None; see `integer`."""
        return self._list(name, int, "a list of integers")

    def numbers(self, name: str) -> tuple[float, ...] | None:
        return self._list(name, float, "a list of floating-point numbers")

    def _list(self, name: str, item_type: type, expected: str) -> tuple[Any, ...] | None:
        value = self.attributes.get(name)
        if value is not None and not (isinstance(value, tuple) and all(type(item) is item_type for item in value)):
            raise self._mismatch(name, value, expected)
        return value

    def _mismatch(self, name: str, value: object, expected: str) -> Refusal:
        problem = "is missing" if value is None else f"is {value!r}"
        return Refusal(Reason.INVALID_NODE, f"attribute {name!r} of {self.op_type} {problem}; expected {expected}")


def _op_types(graph: Any) -> Counter[str]:
    counts = Counter(node.op_type for node in graph.node)
    for inner in (attribute.g for node in graph.node for attribute in node.attribute):
        counts.update(_op_types(inner))
    return counts


def read_node(proto: onnx.NodeProto, name: str, since_version: int, node: Node | None = None) -> OnnxNode:
    """Convert a NodeProto.

    `name` is unique in the graph, `since_version` is 0 without schema, and `node` is `proto`, if already converted.
    """
    node = node_of(proto, name) if node is None else node
    stated = proto.attribute  # most nodes state none
    attributes = {attribute.name: value_of_attribute(attribute) for attribute in stated} if stated else {}
    return OnnxNode(
        name,
        node.op_type,
        node.domain,
        since_version,
        node.inputs,
        node.outputs,
        attributes,
        contradiction_of(proto, since_version, node),
    )


TypeRule = Callable[[OnnxNode, int, Sequence[Value | None]], Sequence[OperandType] | None]
"""(node, op version, inputs) -> output types of an op unknown to onnx, or None."""
TypesByConversion = Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Mapping[str, OperandType] | None]
"""(node, values, constants) -> output types by name, or None."""
Rules = Mapping[tuple[str, str], TypeRule]
NO_RULES: Rules = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """Functions that answer questions about operators, from the installed converters and kernels."""

    has_converter: Callable[[str, str, int], bool]
    """(domain, op type, schema version) -> True if there is a converter."""
    contradiction: Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Unsupported | None]
    """(node, values, constants) -> refusal of an invalid node, or None."""
    output_types: TypesByConversion = lambda node, values, constants: None
    """(node, values, constants) -> output types, for ops that have a converter but no schema in onnx."""
    rules: Rules = field(default_factory=lambda: NO_RULES)
    """Type rules for other ops without a schema in onnx."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxModel:
    """Model with its nodes read; `nodes[i]` is node i of `graph` and of `model.graph`."""

    model: onnx.ModelProto
    graph: Graph
    nodes: tuple[OnnxNode, ...]
    operators: Operators

    @cached_property
    def opsets(self) -> dict[str, int]:
        return opsets_of(self.model.opset_import)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the contents. Weights are hashed one by one: protobuf cannot serialize 2 GiB."""
        hasher = sha256()
        graph = self.model.graph
        parts = (graph.node, graph.input, graph.output, graph.sparse_initializer)
        for message in chain(*parts, self.model.opset_import, self.model.functions):
            hasher.update(message.SerializeToString(deterministic=True))
        for tensor in graph.initializer:
            if is_reference(tensor):
                hasher.update(without_contents(tensor).SerializeToString(deterministic=True))
                hasher.update(array_of(tensor).reshape(-1).view(np.uint8).data)
            else:
                hasher.update(tensor.SerializeToString(deterministic=True))
        return hasher.hexdigest()


def read_model(
    model: onnx.ModelProto, operators: Operators, origins: Sequence[str] | None = None, read: tuple[Node, ...] = ()
) -> OnnxModel:
    """Return `model` with its nodes read, or raise InvalidModelError.

    `origins` has the original node's name for each node. `read` has the model's nodes, if already read with default
    origins.
    """
    stood_for = None if origins is None else [(name,) for name in origins]
    try:
        graph = read_graph(model, origins=stood_for, nodes=read or None)
    except GraphError as error:
        raise InvalidModelError(f"the model's graph is not valid: {error}; export it again") from error
    opsets = opsets_of(model.opset_import)
    nodes = tuple(
        _read_node(proto, node, opsets.get(node.domain, 1))
        for proto, node in zip(model.graph.node, graph.nodes, strict=True)
    )
    return OnnxModel(model=model, graph=graph, nodes=nodes, operators=operators)


def _read_node(proto: onnx.NodeProto, node: Node, opset: int) -> OnnxNode:
    try:
        return read_node(proto, node.name, since_version(node.domain, node.op_type, opset) or 0, node)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(
            f"node {node.name!r} ({node.op_type}) has an attribute that cannot be read: {error}; export the model again"
        ) from error
