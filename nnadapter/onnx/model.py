"""Models and nodes without protobuf, read once and checked against their schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Graph, GraphError, Node, Reason, Unsupported, Value

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


@memoize(_FORMS)
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


@memoize(_FORMS)
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
    """One node of a model, its attributes as plain Python values."""

    name: str
    op_type: str
    domain: str
    """Empty for ONNX's own."""
    since_version: int
    """The version of the op's schema that the model's opset means; 0 if there is no such schema."""
    inputs: tuple[str, ...]
    """Empty strings stand for absent optional inputs."""
    outputs: tuple[str, ...]
    """Empty strings stand for outputs nobody asked for."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """int, float, str, tuples of these, and numpy arrays for tensors; a sub-graph stays the protobuf it was."""
    contradiction: str = ""
    """How the node contradicts its schema, in a sentence; empty if it does not."""

    @property
    def bodies(self) -> tuple[tuple[str, Counter[str]], ...]:
        """Attributes that hold a graph, with the op types in it, those of graphs inside included."""
        if not self.attributes:
            return ()
        graphs = ((name, value) for name, value in self.attributes.items() if hasattr(value, "node"))
        return tuple((name, _op_types(graph)) for name, graph in graphs)

    def input(self, position: int) -> str:
        """The name of an input, empty if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def output(self, position: int) -> str:
        """The name of an output, empty if nobody asked for it."""
        return self.outputs[position] if position < len(self.outputs) else ""

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that is one integer; without a default it is required."""
        value = self.attributes.get(name, default)
        if type(value) is not int:
            raise self._mismatch(name, value, "one integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """An attribute that is one floating-point number; without a default it is required."""
        value = self.attributes.get(name, default)
        if type(value) is not float:
            raise self._mismatch(name, value, "one floating-point number")
        return value

    def text(self, name: str, default: str) -> str:
        """An attribute that is a string."""
        value = self.attributes.get(name, default)
        if type(value) is not str:
            raise self._mismatch(name, value, "a string")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers, or None if the node does not have it."""
        value = self.attributes.get(name)
        if value is not None and not (isinstance(value, tuple) and all(type(item) is int for item in value)):
            raise self._mismatch(name, value, "a list of integers")
        return value

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """An attribute that is a list of floating-point numbers, or None if the node does not have it."""
        value = self.attributes.get(name)
        if value is not None and not (isinstance(value, tuple) and all(type(item) is float for item in value)):
            raise self._mismatch(name, value, "a list of floating-point numbers")
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
    """Return a node without its protobuf.

    Args:
        proto: the node.
        name: its name in the graph that is partitioned, which is unique.
        since_version: its schema version, 0 if it has none.
        node: the same node of that graph, where it has been read already: then only attributes are read.
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
"""A node of an op that onnx knows nothing of, the version of its op, and what is known of its inputs (None where one is
absent) -> the types of its outputs, or None."""
TypesByConversion = Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Mapping[str, OperandType] | None]
"""A node, what is known of values and the contents of constants -> the types of its outputs by name, or None."""
Rules = Mapping[tuple[str, str], TypeRule]
"""By domain and op type."""
NO_RULES: Rules = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """What converters and kernels know of operators."""

    has_converter: Callable[[str, str, int], bool]
    """Whether there is a converter, by domain, op type and schema version."""
    contradiction: Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Unsupported | None]
    """What is wrong with a node, by what is known of values and the contents of constants."""
    output_types: TypesByConversion = lambda node, values, constants: None
    """Types of the results of an op that onnx knows nothing of and that has a converter."""
    rules: Rules = field(default_factory=lambda: NO_RULES)
    """Types of the results of ops that onnx knows nothing of."""


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxModel:
    """A model; node i of the graph is node i of the message, and `nodes[i]` is the same with its attributes read."""

    model: onnx.ModelProto
    graph: Graph
    """The model's own nodes, one each, in the model's order."""
    nodes: tuple[OnnxNode, ...]
    operators: Operators

    @cached_property
    def opsets(self) -> dict[str, int]:
        """The version of every operator set that the model imports, by domain."""
        return opsets_of(self.model.opset_import)

    @cached_property
    def digest(self) -> str:
        """Of the model's contents; weights one by one, as a model of 2 GiB cannot be written as one."""
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
    """Return `model` with its nodes read.

    Args:
        model: the model.
        operators: what is known of them beyond what onnx knows.
        origins: for each of its nodes, the name of the model's own node that it stands for; itself if left out.
        read: the nodes, where they have been read already, each standing for itself.

    Raises:
        InvalidModelError: the graph contradicts itself, or an attribute cannot be read.
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
