"""An ONNX node without its protobuf: what converters and preparation read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.onnx.graphs import node_of
from nnadapter.onnx.node_schema import contradiction_of
from nnadapter.onnx.refusal import Refusal
from partition.graph import Node
from partition.verdict import Reason

if TYPE_CHECKING:
    import onnx


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
