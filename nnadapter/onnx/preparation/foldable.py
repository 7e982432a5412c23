"""Which nodes are evaluated before the run, what their results would hold, and their evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import cast

import numpy as np

from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.folding import evaluate
from partition.graph import Graph, Value

_UNKNOWN_SIZE_BYTES = 1 << 20
"""A result of unknown size (NonZero of a constant) is folded where its inputs hold no more than this."""

_SELECTING = frozenset(("NonZero", "Unique", "Compress"))
_RUN_GRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_NEVER_FOLDED = frozenset(
    [
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "DequantizeLinear",
    ]
)


def is_known(graph: Graph, index: int, values: Mapping[str, Value]) -> bool:
    """Whether the shapes of all results of the node at `index` are known numbers."""
    return all(name in values and values[name].static_shape is not None for name in graph.nodes[index].outputs if name)


def may_fold(read: OnnxModel, index: int) -> bool:
    """Whether a node's results are the same in every run and for every device, if its inputs are known."""
    node = read.nodes[index]
    return (
        not node.domain
        and not node.contradiction
        and node.op_type not in _NEVER_FOLDED
        and node.op_type not in _RUN_GRAPHS
        and not read.graph.nodes[index].captured
    )


def result_bytes(node: OnnxNode, values: Mapping[str, Value], known: Mapping[str, Array]) -> float:
    """Bytes of a node's results; infinite where they cannot be told, so that it is not folded."""
    sizes = [values[name].nbytes if name in values else None for name in node.outputs if name]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    inputs = sum(known[name].nbytes for name in node.inputs if name in known)
    selects = node.op_type in _SELECTING and inputs <= _UNKNOWN_SIZE_BYTES
    return inputs * 8 if selects else float("inf")


def measure(node: OnnxNode, values: Mapping[str, Value], known: Mapping[str, Array]) -> Array | None:
    """The result of Shape or Size where the shape of the input is known, though its contents are not."""
    if node.op_type not in ("Shape", "Size") or node.domain or node.contradiction:
        return None
    name = node.inputs[0]
    shape = known[name].shape if name in known else values[name].static_shape if name in values else None
    if shape is None:
        return None
    if node.op_type == "Size":
        return freeze(np.asarray(prod(shape), np.int64))
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return freeze(np.asarray(shape[cast("int", start) : cast("int | None", end)], np.int64))


def evaluate_nodes(
    read: OnnxModel, known: Mapping[str, Array], chosen: Sequence[int]
) -> tuple[dict[str, Array], frozenset[int]]:
    """Return what others read of the results of `chosen` (positions, ascending), and the nodes that led to it.

    Nodes whose evaluation failed, or whose results nobody reads, are not among those.
    """
    if not chosen:
        return {}, frozenset()
    graph, inside = read.graph, frozenset(chosen)
    outputs = frozenset(graph.outputs)
    wanted = [
        name
        for index in chosen
        for name in graph.nodes[index].outputs
        if name in outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
    ]
    results = evaluate(read, chosen, known, wanted)
    return results, _behind(graph, results, inside)


def _behind(graph: Graph, names: Iterable[str], inside: frozenset[int]) -> frozenset[int]:
    found: set[int] = set()
    pending = list(names)
    while pending:
        index = graph.producer.get(pending.pop())
        if index in inside and index not in found:
            found.add(index)
            pending.extend(graph.nodes[index].reads)
    return frozenset(found)
