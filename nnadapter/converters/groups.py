"""Nodes that are converted together: an op on reals with DequantizeLinear before it and QuantizeLinear behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nnadapter.converters.quantized_groups import ACTIVATED, ACTIVATIONS, GROUPED
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.node import OnnxNode

_SOURCE, _TARGET = "DequantizeLinear", "QuantizeLinear"
_DOMAINS = frozenset({"", MICROSOFT})
"""Where both of them are found; ONNX Runtime's take 16 bits before opset 21 too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, by positions of its nodes."""

    node: int
    """The op on reals."""
    sources: Mapping[str, int]
    """The DequantizeLinear that makes a value which `node` reads, by the value's name."""
    target: int
    """The QuantizeLinear, which is the last of them."""
    activation: int | None
    """What stands between `node` and `target`."""

    @property
    def members(self) -> tuple[int, ...]:
        """All nodes, ascending."""
        between = () if self.activation is None else (self.activation,)
        return tuple(sorted({self.node, self.target, *self.sources.values(), *between}))


def find_groups(nodes: Sequence[OnnxNode], wanted: Collection[str], apart: Collection[str] = ()) -> tuple[Group, ...]:
    """Return the groups of a graph, in the order of their last nodes.

    1. A group ends in a QuantizeLinear. What it reads is made by a node of a type in `GROUPED`, or by an activation
       behind such a node, and is read by nobody else.
    2. The node reads at least one value that a DequantizeLinear makes; the others it reads may be constants.
    3. Values in `apart` stay outside.

    Args:
        nodes: in a topological order.
        wanted: values that are read outside of the nodes.
        apart: values that no group may hold inside.
    """
    targets = [position for position, node in enumerate(nodes) if _is(node, _TARGET)]
    if not targets:
        return ()
    index = _Index(nodes, frozenset(wanted) | frozenset(apart))
    candidates = map(index.group, targets)
    return tuple(group for group in candidates if group is not None)


def shared_sources(groups: Sequence[Group], nodes: Sequence[OnnxNode], wanted: Collection[str]) -> dict[int, list[int]]:
    """Per DequantizeLinear that others read as well: the groups (positions) that need one of their own."""
    readers: dict[str, set[int]] = {}
    for position, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(position)
    owners: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for source in dict.fromkeys(group.sources.values()):
            owners.setdefault(source, []).append(number)
    shared = {}
    for source, numbers in owners.items():
        name = nodes[source].outputs[0]
        inside = {groups[number].node for number in numbers}
        free = name in wanted or readers[name] > inside
        others = numbers if free else numbers[1:]
        if others:
            shared[source] = others
    return shared


@dataclass(slots=True)
class _Index:
    nodes: Sequence[OnnxNode]
    outside: frozenset[str]
    producers: dict[str, int] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            self.producers.update((name, position) for name in node.outputs if name)
            for name in dict.fromkeys(node.inputs):
                self.readers[name] = self.readers.get(name, 0) + 1

    def group(self, target: int) -> Group | None:
        """The group that ends at `target`."""
        node, activation = self._maker(self.nodes[target].input(0)), None
        if node is not None and self.nodes[node].op_type in ACTIVATIONS:
            before = self._maker(self.nodes[node].input(0))
            if before is not None and self.nodes[before].op_type in ACTIVATED:
                node, activation = before, node
        if node is None or self.nodes[node].domain or self.nodes[node].op_type not in GROUPED:
            return None
        sources = {name: self.producers[name] for name in self.nodes[node].inputs if self._is_source(name)}
        return Group(node=node, sources=sources, target=target, activation=activation) if sources else None

    def _maker(self, name: str) -> int | None:
        """The node that makes a value which nobody else reads."""
        if name in self.outside or self.readers.get(name) != 1 or name not in self.producers:
            return None
        node = self.producers[name]
        return node if [output for output in self.nodes[node].outputs if output] == [name] else None

    def _is_source(self, name: str) -> bool:
        return name in self.producers and _is(self.nodes[self.producers[name]], _SOURCE)


def _is(node: OnnxNode, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _DOMAINS
