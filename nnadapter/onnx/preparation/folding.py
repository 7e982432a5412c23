"""Evaluating the constant part of a graph: what is plain, and the rest in one ONNX Runtime run, or node by node."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.building import array_info, model_of, untyped
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.onnxruntime_limits import QUIET, onnxruntime_limits
from nnadapter.onnx.preparation.plain_results import plain_result
from nnadapter.onnx.values import constant_value
from nnadapter.onnx.versions import stamp_down
from partition.verdict import Unsupported


def evaluate(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], wanted: Sequence[str]
) -> dict[str, Array]:
    """Return the values `wanted`, which some nodes make from `constants` alone; those that cannot be had are left out.

    Args:
        read: the model.
        positions: of the nodes, ascending; every input is in `constants` or made by one of them.
        constants: arrays by value name; only those that are read are looked at, and none is copied.
        wanted: names of values that the nodes make.
    """
    plain: dict[str, Array] = {}
    known: Mapping[str, Array] = ChainMap(plain, constants)  # type: ignore[arg-type]
    left = []
    for position in positions:
        node = read.nodes[position]
        result = plain_result(node, known)
        if result is None:
            left.append(position)
        else:
            plain[node.outputs[0]] = freeze(result)
    arrays = {name: plain[name] for name in wanted if name in plain}
    if len(arrays) < len(wanted):
        arrays.update(_evaluated(read, left, known, [name for name in wanted if name not in plain]))
    return arrays


def _evaluated(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], wanted: Sequence[str]
) -> dict[str, Array]:
    nodes = [read.graph.nodes[position] for position in positions]
    made = {name for node in nodes for name in node.outputs}
    feeds = {name: constants[name] for node in nodes for name in node.inputs if name and name not in made}
    try:
        arrays = _run(_model(read, positions, feeds, wanted), feeds)
    except Exception:  # noqa: BLE001  any failure here only means that the slower way is tried
        return _one_by_one(read, positions, feeds, wanted)
    return {name: freeze(array) for name, array in zip(wanted, arrays, strict=True) if isinstance(array, np.ndarray)}


def _model(
    read: OnnxModel, positions: Iterable[int], feeds: Mapping[str, object], wanted: Iterable[str]
) -> onnx.ModelProto:
    """Some nodes as a model that takes `feeds`."""
    inputs = (array_info(name, value) for name, value in feeds.items())
    nodes = (read.model.graph.node[position] for position in positions)
    return model_of(read.model, nodes, inputs, untyped(wanted), ir_version=onnx.IR_VERSION)


def _run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[object]:
    from nnadapter.process.real_onnxruntime import onnxruntime  # many models have nothing to evaluate

    opsets, ir_version = onnxruntime_limits()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = 1
    # Every node runs once: optimizing the graph would evaluate it first.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stamped = stamp_down(model, opsets, ir_version)
    if isinstance(stamped, Unsupported):
        raise InvalidModelError(stamped.detail)
    session = onnxruntime.InferenceSession(stamped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: Sequence[object] = session.run(None, dict(feeds))
    return results


def _one_by_one(
    read: OnnxModel, positions: Sequence[int], feeds: Mapping[str, Array], wanted: Sequence[str]
) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    known: dict[str, object] = dict(feeds)
    for position in positions:
        node = read.nodes[position]
        names = dict.fromkeys(filter(None, node.inputs))
        if not all(name in known for name in names):
            continue
        node_feed, made = {name: known[name] for name in names}, [name for name in node.outputs if name]
        values = {
            name: constant_value(name, array) for name, array in node_feed.items() if isinstance(array, np.ndarray)
        }
        try:
            if read.operators.contradiction(node, values, {}) is not None:
                continue  # the evaluator would make something of it
            # Given a node and no model, the evaluator takes it for one of the newest opset.
            results = ReferenceEvaluator(_model(read, [position], node_feed, made)).run(None, node_feed)
        except Exception:  # noqa: BLE001  a node that cannot be evaluated stays in the graph
            continue
        known.update((name, result) for name, result in zip(made, results, strict=True) if result is not None)
    # A list is a sequence, which is no constant, though nodes after it read it.
    arrays = {name: known[name] for name in wanted if isinstance(known.get(name), np.ndarray | np.generic)}
    return {name: freeze(np.asarray(result)) for name, result in arrays.items()}
