"""Evaluating the constant part of a graph: in one ONNX Runtime run, node by node where that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.onnxruntime_limits import QUIET, onnxruntime_limits
from nnadapter.onnx.operators import Operators
from nnadapter.onnx.versions import stamp_down
from partition.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable


def evaluate(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array],
    wanted: Sequence[str],
    opset_imports: Iterable[onnx.OperatorSetIdProto],
    operators: Operators,
) -> dict[str, Array]:
    """Return the values `wanted`, which `nodes` make from `constants` alone; those that cannot be had are left out.

    Args:
        nodes: in a topological order; every input is in `constants` or made by one of them.
        constants: arrays by value name; only those that are read are looked at, and none is copied.
        wanted: names of values that `nodes` make.
        opset_imports: the model's.
        operators: what is known of them beyond what onnx knows.
    """
    model, feeds = _constant_model(nodes, constants, wanted, opset_imports)
    try:
        arrays = _run(model, feeds)
    except Exception:  # noqa: BLE001  any failure here only means that the slower way is tried
        return _one_by_one(model, feeds, wanted, operators)
    return {name: freeze(array) for name, array in zip(wanted, arrays, strict=True) if isinstance(array, np.ndarray)}


def _constant_model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array],
    wanted: Sequence[str],
    opset_imports: Iterable[onnx.OperatorSetIdProto],
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    feeds = {name: constants[name] for name in read}
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=opset_imports)
    model.graph.name = "constants"
    model.graph.node.extend(nodes)
    model.graph.input.extend(_typed(name, array) for name, array in feeds.items())
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    return model, feeds


def _run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[object]:
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
    model: onnx.ModelProto, feeds: Mapping[str, Array], wanted: Sequence[str], operators: Operators
) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    known: dict[str, object] = dict(feeds)
    for node in model.graph.node:
        names = [name for name in node.input if name]
        if not all(name in known for name in names):
            continue
        try:
            alone = _alone(model, node, known)
            if operators.contradiction(alone) is not None:
                continue  # the evaluator would make something of it
            results = ReferenceEvaluator(alone).run(None, {name: known[name] for name in names})
            made = dict(zip((value.name for value in alone.graph.output), results, strict=True))
        except Exception:  # noqa: BLE001  a node that cannot be evaluated stays in the graph
            continue
        known.update((name, result) for name, result in made.items() if name and result is not None)
    found = {name: known[name] for name in wanted if name in known}
    # A list is a sequence, which is no constant, though nodes after it read it.
    return {
        name: freeze(np.asarray(result))
        for name, result in found.items()
        if isinstance(result, np.ndarray | np.generic)
    }


def _alone(model: onnx.ModelProto, node: onnx.NodeProto, known: Mapping[str, object]) -> onnx.ModelProto:
    """One node as a model. Given a node and no model, the evaluator takes it for one of the newest opset."""
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    alone.graph.name = "node"
    alone.graph.node.append(node)
    alone.graph.input.extend(_typed(name, known[name]) for name in dict.fromkeys(filter(None, node.input)))
    alone.graph.output.extend(onnx.ValueInfoProto(name=name) for name in filter(None, node.output))
    return alone


def _typed(name: str, value: object) -> onnx.ValueInfoProto:
    if not isinstance(value, np.ndarray):
        return onnx.ValueInfoProto(name=name)
    element = onnx.TensorProto.STRING if value.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(value.dtype)
    made: onnx.ValueInfoProto = helper.make_tensor_value_info(name, element, value.shape)
    return made
