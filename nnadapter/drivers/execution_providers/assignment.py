"""Which nodes a provider took, by ONNX Runtime's own graph assignment.

ONNX Runtime says of every node that is left after its rewriting who runs it, by the node's name. Names need not be
there or be unique, so nodes are marked beforehand. What was made of a node keeps its mark in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnadapter.drivers.execution_providers.names import BY_KERNELS
from nnadapter.process.real_onnxruntime import onnxruntime
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

if TYPE_CHECKING:
    import onnx

_MARK = re.compile(r"nnadapter:(\d+):")
_INSERTED = frozenset(("Cast", "MemcpyFromHost", "MemcpyToHost", "Transpose"))
"""What ONNX Runtime puts between its providers, and in front of and behind a graph."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who runs the nodes of a model: positions of marked ones."""

    taken: frozenset[int]
    """Every part of them runs on the provider."""
    left: frozenset[int]
    """A part of them is left to ONNX Runtime's CPU."""
    made: tuple[str, ...]
    """Op types that are left to the CPU and that no mark leads from: parts of functions."""

    def without(self, positions: Set[int]) -> Assignment:
        """The same, but nothing is said of some nodes."""
        return Assignment(self.taken, self.left - positions, self.made)

    def verdict(self, position: int, provider: str) -> Verdict:
        """Whether the provider takes a node.

        A node that is gone was folded, or became part of another; if it was a function whose parts are left, it is
        refused, whichever of those functions it was.
        """
        # Whether there is a kernel does not hang on sizes; what a compiler takes may.
        reason = Reason.UNSUPPORTED_OPERATION if provider in BY_KERNELS else Reason.DEVICE_REFUSED
        if position in self.left:
            suffix = "" if self.taken else ", with all of the graph: it knows none of this, or its options do not fit"
            return Unsupported(reason, f"{provider} leaves it to ONNX Runtime's CPU{suffix}")
        if position in self.taken or not self.made:
            return SUPPORTED
        parts = ", ".join(sorted(set(self.made))[:3])
        return Unsupported(reason, f"{provider} leaves parts of it to ONNX Runtime's CPU: {parts}")


def marked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose nodes, and the nodes inside them, say in their names where they stand."""
    copy = type(model)()
    copy.CopyFrom(model)
    for position, node in enumerate(copy.graph.node):
        for number, inner in enumerate(_with_inner(node)):
            inner.name = f"nnadapter:{position}:{number}"
    return copy


def read_assignment(session: onnxruntime.InferenceSession, provider: str) -> Assignment:
    """Return who runs the nodes of a marked model."""
    assigned_nodes: set[int] = set()
    unassigned_nodes: set[int] = set()
    decomposed_ops: list[str] = []
    for part in session.get_provider_graph_assignment_info():
        ours = part.ep_name == provider
        for node in part.get_nodes():
            mark = _MARK.match(node.name)
            if mark is not None:
                (assigned_nodes if ours else unassigned_nodes).add(int(mark[1]))
            elif not ours and node.op_type not in _INSERTED:
                decomposed_ops.append(node.op_type)
    return Assignment(frozenset(assigned_nodes - unassigned_nodes), frozenset(unassigned_nodes), tuple(decomposed_ops))


def _with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    yield node
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _with_inner(inner)
