"""Preparation: shapes propagated and constants folded to a fixed point, every node keeping its origins.

The way through, for one model:

1. `prepare` does once what does not depend on the shapes of inputs: names, attributes read, the constant part of the
   graph evaluated in one ONNX Runtime run.
2. `specialise` does per set of input shapes what is left: shapes propagated by onnx's own inference, `Shape` and `Size`
   of known shapes taken as constants, what hangs on them evaluated, until nothing new becomes known.

No node is fused or rewritten: a node is kept, or folded because its outputs are known, or unused because nobody reads
them. Nodes that draw random numbers, run another graph or dequantise weights are never folded. Folding is bounded:
the arrays that one call makes hold at most `ONCE_BYTES` and `PER_SHAPE_BYTES`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

import numpy as np
import onnx
from onnx import numpy_helper

from nnadapter.converters.node import OnnxNode
from nnadapter.converters.registry import read_node, since_version
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.preparation.folding import evaluate
from nnadapter.preparation.inference import Inference
from partition.graph import Graph, GraphError, Node, Value
from partition.onnx_io import read_graph

ONCE_BYTES = 1 << 30
PER_SHAPE_BYTES = 1 << 26
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
Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> dimensions, every one known."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model after what is done once."""

    model: onnx.ModelProto
    graph: Graph
    """The model's own nodes, one each, in the model's order."""
    nodes: tuple[OnnxNode, ...]
    """The same nodes with their attributes read."""
    constants: Mapping[str, Array]
    """Initialisers and what was folded from them."""
    evaluated: frozenset[int]
    """Positions of the nodes that were evaluated for `constants`."""
    inference: Inference
    defaults: Mapping[str, Array]
    """Contents of inputs that need not be fed: initialisers that are inputs as well."""


@dataclass(frozen=True, eq=False)
class Specialised:
    """A model for one set of input shapes."""

    own: Graph
    """The model's own nodes."""
    graph: Graph
    """What is left to run; its nodes name their origins in the model."""
    nodes: tuple[OnnxNode, ...]
    """The same nodes with their attributes read."""
    positions: tuple[int, ...]
    """For every node, its position in the model."""
    constants: Mapping[str, Array]
    """Every value that is known."""
    folded: tuple[str, ...]
    """Names of the model's nodes whose results are known before the run."""
    unused: tuple[str, ...]
    """Names of the model's nodes whose results nobody reads."""


def prepare(model: onnx.ModelProto) -> Prepared:
    """Return `model` with what does not depend on input shapes done.

    Raises:
        InvalidModelError: the graph contradicts itself.
    """
    try:
        graph = read_graph(model)
    except GraphError as error:
        raise InvalidModelError(f"the model's graph is not valid: {error}; export it again") from error
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    nodes = tuple(
        _read_node(proto, node, opsets.get(node.domain or "ai.onnx", 1))
        for proto, node in zip(model.graph.node, graph.nodes, strict=True)
    )
    initialisers = _initialisers(model, graph.constants)
    defaults = _initialisers(model, frozenset(graph.inputs))
    inference = Inference(model, graph)
    everything = range(len(nodes))
    values = inference.values({}, initialisers, everything)
    found, evaluated = _fold(model, graph, nodes, initialisers, everything, values, ONCE_BYTES)
    return Prepared(model, graph, nodes, {**initialisers, **found}, evaluated, inference, defaults)


def _read_node(proto: onnx.NodeProto, node: Node, opset: int) -> OnnxNode:
    try:
        return read_node(proto, node.name, since_version(node.domain, node.op_type, opset) or 0)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(
            f"node {node.name!r} ({node.op_type}) has an attribute that cannot be read: {error}; export the model again"
        ) from error


def specialise(prepared: Prepared, shapes: Shapes) -> Specialised:
    """Return the model for inputs of the given shapes.

    Raises:
        InvalidModelError: the model contradicts itself at these shapes.
    """
    graph = prepared.graph
    added: dict[str, Array] = {}
    known = ChainMap(added, prepared.constants)  # type: ignore[arg-type]
    evaluated = set(prepared.evaluated)
    while True:
        left = _reached(graph, known)
        values = prepared.inference.values(shapes, known, left)
        found, newly = _fold(prepared.model, graph, prepared.nodes, known, left, values, PER_SHAPE_BYTES)
        added.update(found)
        evaluated |= newly
        if not found or all(_is_known(graph, index, values) for index in left if index not in newly):
            return _specialised(prepared, known, evaluated, values)


def _specialised(
    prepared: Prepared, known: Mapping[str, Array], evaluated: set[int], values: Mapping[str, Value]
) -> Specialised:
    graph = prepared.graph
    kept = _reached(graph, known)
    gone = sorted(set(range(len(graph.nodes))) - set(kept))
    return Specialised(
        own=graph,
        graph=Graph(
            nodes=tuple(graph.nodes[index] for index in kept),
            values=_marked(graph, kept, values),
            constants=frozenset(known),
            inputs=graph.inputs,
            outputs=graph.outputs,
        ),
        nodes=tuple(prepared.nodes[index] for index in kept),
        positions=tuple(kept),
        constants=known,
        folded=tuple(graph.nodes[index].name for index in gone if index in evaluated),
        unused=tuple(graph.nodes[index].name for index in gone if index not in evaluated),
    )


def _initialisers(model: onnx.ModelProto, names: frozenset[str]) -> dict[str, Array]:
    tensors = (tensor for tensor in model.graph.initializer if tensor.name in names)
    return {tensor.name: freeze(numpy_helper.to_array(tensor)) for tensor in tensors}


def _reached(graph: Graph, known: Mapping[str, Array]) -> list[int]:
    """Positions of the nodes that the outputs still need, ascending."""
    needed: set[int] = set()
    pending = [name for name in graph.outputs if name not in known]
    while pending:
        index = graph.producer.get(pending.pop())
        if index is not None and index not in needed:
            needed.add(index)
            pending.extend(name for name in graph.nodes[index].reads if name not in known)
    return sorted(needed)


def _is_known(graph: Graph, index: int, values: Mapping[str, Value]) -> bool:
    return all(name in values and values[name].static_shape is not None for name in graph.nodes[index].outputs if name)


def _fold(
    model: onnx.ModelProto,
    graph: Graph,
    nodes: Sequence[OnnxNode],
    known: Mapping[str, Array],
    candidates: Sequence[int],
    values: Mapping[str, Value],
    budget: float,
) -> tuple[dict[str, Array], frozenset[int]]:
    """What becomes known among `candidates` (positions, ascending), and the positions of the nodes evaluated for it."""
    measured: dict[str, Array] = {}
    chosen: dict[int, None] = {}
    made: dict[str, int] = {}
    for index in candidates:
        node = nodes[index]
        shape = _measure(node, values, known)
        if shape is not None:
            measured[node.outputs[0]] = shape
            made[node.outputs[0]] = index
            continue
        if not _may_fold(graph, node, index) or not all(name in made or name in known for name in node.inputs if name):
            continue
        size = _result_bytes(node, values, known)
        if size <= budget:
            budget -= size
            chosen[index] = None
            made.update(dict.fromkeys(filter(None, node.outputs), index))
    results = _evaluated(model, graph, ChainMap(measured, known), list(chosen))  # type: ignore[arg-type]
    return {**measured, **results}, frozenset(made.values())


def _evaluated(
    model: onnx.ModelProto, graph: Graph, known: Mapping[str, Array], chosen: Sequence[int]
) -> dict[str, Array]:
    if not chosen:
        return {}
    inside, outputs = frozenset(chosen), frozenset(graph.outputs)
    wanted = [
        name
        for index in chosen
        for name in graph.nodes[index].outputs
        if name in outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
    ]
    return evaluate([model.graph.node[index] for index in chosen], known, wanted, model.opset_import)


def _may_fold(graph: Graph, node: OnnxNode, index: int) -> bool:
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in _NEVER_FOLDED
        and node.op_type not in _RUN_GRAPHS
        and not graph.nodes[index].captured
    )


def _result_bytes(node: OnnxNode, values: Mapping[str, Value], known: Mapping[str, Array]) -> float:
    """Bytes of a node's results; infinite where they cannot be told, so that it is not folded."""
    sizes = [values[name].nbytes if name in values else None for name in node.outputs if name]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    inputs = sum(known[name].nbytes for name in node.inputs if name in known)
    selects = node.op_type in _SELECTING and inputs <= _UNKNOWN_SIZE_BYTES
    return inputs * 8 if selects else float("inf")


def _measure(node: OnnxNode, values: Mapping[str, Value], known: Mapping[str, Array]) -> Array | None:
    """The result of Shape or Size where the shape of the input is known, though its contents are not."""
    if node.op_type not in ("Shape", "Size") or node.domain not in ("", "ai.onnx"):
        return None
    name = node.inputs[0]
    shape = known[name].shape if name in known else values[name].static_shape if name in values else None
    if shape is None:
        return None
    if node.op_type == "Size":
        return freeze(np.asarray(prod(shape), np.int64))
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return freeze(np.asarray(shape[cast("int", start) : cast("int | None", end)], np.int64))


def _marked(graph: Graph, kept: Sequence[int], values: Mapping[str, Value]) -> dict[str, Value]:
    """The values, those whose shape depends on data marked: a node with known input shapes whose result has none."""
    marked = dict(values)
    for index in kept:
        node = graph.nodes[index]
        for name in filter(None, node.outputs):
            value = marked.get(name, Value(name))
            if value.static_shape is None and value.dtype is not None:
                marked[name] = replace(value, data_dependent=_data_decides(node, marked))
    return marked


def _data_decides(node: Node, values: Mapping[str, Value]) -> bool:
    if any(name in values and values[name].data_dependent for name in node.reads):
        return True
    return all(name not in values or values[name].static_shape is not None for name in node.reads)
