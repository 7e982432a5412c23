"""Shapes and constants once forward through the nodes that are left, one node at a time.

Inference over a whole graph stops where a shape must be computed first by what it cannot follow (`Shape` -> `Div` ->
`Reshape`), and must then be begun again: once for every level of such shapes. Here every node is looked at once:

1. `Shape` and `Size` of a known shape are taken as constants.
2. A result of unknown shape is inferred from what is now known of the inputs of its node alone: by the rule for the op
   where onnx has none, else by onnx.
3. A node whose inputs are known waits to be evaluated; all that wait are evaluated in one go, as soon as a shape
   hangs on the contents of one of them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.inference import Inference
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.foldable import evaluate_nodes, is_known, may_fold, measure, result_bytes
from nnadapter.onnx.values import value_of, values_of
from partition.graph import Value


class Forward:
    """One way forward through one graph; `budget` is the most bytes that the arrays made on it may hold."""

    def __init__(self, read: OnnxModel, inference: Inference, budget: float) -> None:
        self._read = read
        self._graph = read.graph
        self._inference = inference
        self._budget = budget
        self._types: dict[str, onnx.ValueInfoProto] = {}
        self.stated: dict[str, onnx.ValueInfoProto] = {}
        """What rules said of values, which inference over the whole graph is told from then on."""
        self._values: dict[str, Value] = {}
        self._found: dict[str, Array] = {}
        self._known: Mapping[str, Array] = {}
        self._evaluated: set[int] = set()
        self._waiting: list[int] = []
        self._promised: set[str] = set()

    def go(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        known: Mapping[str, Array],
        nodes: Sequence[int],
        found: dict[str, Array],
    ) -> frozenset[int]:
        """Put what becomes known on the way into `found`; return the positions of the nodes evaluated for it.

        Args:
            shapes: dimensions of model inputs.
            known: every value whose contents are known.
            nodes: the nodes that are left to run (positions, ascending).
            found: where to put it.

        Raises:
            InvalidModelError: types contradict each other.
        """
        self._types = self._inference.types(shapes, known, nodes, self.stated)
        self._values = values_of(self._types.values())
        self._known = ChainMap(self._found, known)  # type: ignore[arg-type]
        for index in nodes:
            self._visit(index)
        self._evaluate()
        found.update(self._found)
        return frozenset(self._evaluated)

    def _visit(self, index: int) -> None:
        node = self._read.nodes[index]
        shape = measure(node, self._values, self._known)
        if shape is not None:
            self._found[node.outputs[0]] = shape
            self._evaluated.add(index)
            return
        self._infer(index)
        if not self._is_known(index) and any(name in self._promised for name in self._graph.nodes[index].reads):
            self._evaluate()
            self._infer(index)
        if not may_fold(self._read, index) or not self._has_constant_inputs(node):
            return
        size = result_bytes(node, self._values, self._known)
        if size <= self._budget:
            self._budget -= size
            self._waiting.append(index)
            self._promised.update(filter(None, node.outputs))

    def _is_known(self, index: int) -> bool:
        return is_known(self._graph, index, self._values)

    def _has_constant_inputs(self, node: OnnxNode) -> bool:
        return all(name in self._known or name in self._promised for name in node.inputs if name)

    def _infer(self, index: int) -> None:
        if self._is_known(index):
            return
        said = self._inference.stated_of_one(index, self._values, self._known)
        if said:
            self.stated.update(said)
            self._types.update(said)
            self._values.update((name, value_of(info)) for name, info in said.items())
            return
        for name, info in self._inference.types_of_one(index, self._types, self._known).items():
            value, before = value_of(info), self._values.get(name)
            # Inference over the whole may have known more: it follows contents that are known in part.
            if value.static_shape is not None or before is None or before.shape is None:
                self._types[name], self._values[name] = info, value

    def _evaluate(self) -> None:
        results, evaluated = evaluate_nodes(self._read, self._known, self._waiting)
        self._found.update(results)
        self._evaluated |= evaluated
        self._waiting = []
        self._promised = set()
