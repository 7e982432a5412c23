"""Which nodes are evaluated before the run, what their results would hold, and their evaluation."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping

from nnadapter.ir.operand import Array
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.nodes import RUNNING_GRAPHS
from nnadapter.onnx.preparation.folding import evaluate
from nnadapter.onnx.preparation.measuring import measured, taken_sizes
from partition.graph import Graph, Value

_UNKNOWN_SIZE_BYTES = 1 << 20
"""A result of unknown size (NonZero of a constant) is folded where its inputs hold no more than this."""

_SELECTING = frozenset(("NonZero", "Unique", "Compress"))
_NEVER_FOLDED = frozenset(
    [
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    ]
)
_DEQUANTIZING = "DequantizeLinear"
"""Folded where it is asked for: devices and ONNX Runtime make integer operations of it."""


def is_known(graph: Graph, index: int, values: Mapping[str, Value]) -> bool:
    """Whether the shapes of all results of the node at `index` are known numbers."""
    return all(name in values and values[name].static_shape is not None for name in graph.nodes[index].outputs if name)


def may_fold(read: OnnxModel, index: int, dequantizing: Collection[int] = ()) -> bool:
    """Whether a node's results are the same in every run and for every device, if its inputs are known.

    One that dequantizes is folded only if its position is in `dequantizing`.
    """
    node = read.nodes[index]
    return (
        not node.domain
        and not node.contradiction
        and (node.op_type != _DEQUANTIZING or index in dequantizing)
        and node.op_type not in _NEVER_FOLDED
        and node.op_type not in RUNNING_GRAPHS
        and not read.graph.nodes[index].captured
    )


def result_bytes(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> float:
    """Bytes of a node's results; infinite where they cannot be told, so that it is not folded."""
    sizes = [values[name].nbytes if name in values else None for name in node.outputs if name]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    inputs = sum(constants[name].nbytes for name in node.inputs if name in constants)
    selects = node.op_type in _SELECTING and inputs <= _UNKNOWN_SIZE_BYTES
    return inputs * 8 if selects else float("inf")


class Folding:
    """What becomes known of one graph: nodes whose inputs are known wait, and are evaluated in one go."""

    def __init__(
        self, read: OnnxModel, constants: Mapping[str, Array], budget: float, dequantizing: Collection[int] = ()
    ) -> None:
        """Begin with nothing.

        Args:
            read: the model.
            constants: every value whose contents are known.
            budget: the most bytes that the arrays made may hold.
            dequantizing: positions of nodes that dequantize, and may be evaluated all the same.
        """
        self._read = read
        self._dequantizing = dequantizing
        self.folded: dict[str, Array] = {}
        """What became known."""
        self._known_before = constants
        self.known: Mapping[str, Array] = ChainMap(self.folded, constants)  # type: ignore[arg-type]
        self.evaluated: set[int] = set()
        """Positions of the nodes that led to it; not of those that failed, or whose results nobody reads."""
        self._budget = budget
        self._waiting: list[int] = []
        self._promised: set[str] = set()

    def measure(self, index: int, values: Mapping[str, Value]) -> bool:
        """Whether the node at `index` only measures what is known: then its result is."""
        return self._keep(index, measured(self._read.nodes[index], values, self.known))

    def take_sizes(self, index: int, values: Mapping[str, Value]) -> bool:
        """Whether the node at `index`, which was not evaluated, takes known sizes of a shape that is known in part."""
        return index not in self.evaluated and self._keep(index, taken_sizes(self._read, index, values, self.known))

    def _keep(self, index: int, sizes: Array | None) -> bool:
        if sizes is not None:
            self.folded[self._read.nodes[index].outputs[0]] = sizes
            self.evaluated.add(index)
        return sizes is not None

    def await_evaluation(self, index: int, values: Mapping[str, Value]) -> None:
        """Let the node at `index` wait, if it may be folded and its inputs are known or waited for."""
        if not self._reads_known(index) or not may_fold(self._read, index, self._dequantizing):
            return
        node = self._read.nodes[index]
        size = result_bytes(node, values, self.known)
        if size <= self._budget:
            self._budget -= size
            self._waiting.append(index)
            self._promised.update(filter(None, node.outputs))

    def hangs_on_known(self, index: int) -> bool:
        """Whether the node at `index` was not evaluated, and may be, as its inputs are known or waited for."""
        is_new = index not in self.evaluated and self._promised.isdisjoint(self._read.nodes[index].outputs)
        return is_new and self._reads_known(index) and may_fold(self._read, index, self._dequantizing)

    def _reads_known(self, index: int) -> bool:
        for name in self._read.nodes[index].inputs:
            if name and name not in self._known_before and name not in self.folded and name not in self._promised:
                return False
        return True

    def is_awaited(self, index: int) -> bool:
        """Whether the node at `index` reads a result that is waited for."""
        return not self._promised.isdisjoint(self._read.graph.nodes[index].reads)

    def evaluate(self) -> None:
        """Evaluate what waits, as far as others read it."""
        graph, inside = self._read.graph, frozenset(self._waiting)
        outputs = frozenset(graph.outputs)
        result_names = [
            name
            for index in self._waiting
            for name in graph.nodes[index].outputs
            if name in outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
        ]
        results = evaluate(self._read, self._waiting, self.known, result_names) if inside else {}
        self.folded.update(results)
        self.evaluated |= _behind(graph, results, inside)
        self._waiting, self._promised = [], set()


def _behind(graph: Graph, names: Iterable[str], inside: frozenset[int]) -> frozenset[int]:
    positions: set[int] = set()
    pending = list(names)
    while pending:
        index = graph.producer.get(pending.pop())
        if index in inside and index not in positions:
            positions.add(index)
            pending.extend(graph.nodes[index].reads)
    return frozenset(positions)
