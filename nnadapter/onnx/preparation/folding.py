"""Evaluating the constant part of a graph: what is plain, and the rest in one ONNX Runtime run, or node by node."""

from __future__ import annotations

import ctypes
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.building import array_info, initializer_of, model_of, untyped
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.onnxruntime_limits import QUIET, onnxruntime_limits
from nnadapter.onnx.preparation.plain_results import plain_result
from nnadapter.onnx.values import constant_value
from nnadapter.onnx.versions import stamp_down
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE, ITEMSIZE_OF_DTYPE
from partition.verdict import Unsupported


def evaluate(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    """Return the values `output_names`, which nodes make from `constants` alone, without those that cannot be had.

    Args:
        read: the model.
        positions: of the nodes, ascending; every input is in `constants` or made by one of them.
        constants: arrays by value name; only those that are read are looked at, and none is copied.
        output_names: names of values that the nodes make.
    """
    plain: dict[str, Array] = {}
    arrays_by_name: Mapping[str, Array] = ChainMap(plain, constants)  # type: ignore[arg-type]
    pending_positions = []
    for position in positions:
        node = read.nodes[position]
        result = plain_result(node, arrays_by_name)
        if result is None:
            pending_positions.append(position)
        else:
            plain[node.outputs[0]] = freeze(result)
    arrays = {name: plain[name] for name in output_names if name in plain}
    if len(arrays) < len(output_names):
        arrays.update(
            _evaluated(read, pending_positions, arrays_by_name, [name for name in output_names if name not in plain])
        )
    return arrays


def _evaluated(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    nodes = [read.graph.nodes[position] for position in positions]
    produced_names = {name for node in nodes for name in node.outputs}
    feeds = {name: constants[name] for node in nodes for name in node.inputs if name and name not in produced_names}
    try:
        arrays = _run(read, positions, feeds, output_names)
    except Exception:  # noqa: BLE001  any failure here only means that the slower way is tried
        return _one_by_one(read, positions, feeds, output_names)
    return {
        name: freeze(array) for name, array in zip(output_names, arrays, strict=True) if isinstance(array, np.ndarray)
    }


def _model(
    read: OnnxModel, positions: Iterable[int], feeds: Mapping[str, object], output_names: Iterable[str]
) -> onnx.ModelProto:
    """Some nodes as a model that takes `feeds`."""
    inputs = (array_info(name, value) for name, value in feeds.items())
    nodes = (read.model.graph.node[position] for position in positions)
    return model_of(read.model, nodes, inputs, untyped(output_names), ir_version=onnx.IR_VERSION)


def _run(
    read: OnnxModel, positions: Sequence[int], feeds: Mapping[str, Array], output_names: Sequence[str]
) -> Sequence[object]:
    """Return what ONNX Runtime computes; arrays that its Python interface does not take are initializers."""
    from nnadapter.process.real_onnxruntime import onnxruntime  # many models have nothing to evaluate

    passed = {name: array for name, array in feeds.items() if array.dtype.kind in "OUS" or array.dtype.isbuiltin == 1}
    model = _model(read, positions, passed, output_names)
    model.graph.initializer.extend(initializer_of(name, feeds[name]) for name in feeds.keys() - passed.keys())

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
    if all(_is_passed(output.type) for output in session.get_outputs()):
        results: Sequence[object] = session.run(None, passed)
        return results
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in passed.items()}
    return [_array(value) if value.is_tensor() else None for value in session.run_with_ort_values(None, values)]


def _is_passed(type_: str) -> bool:
    """Return whether ONNX Runtime's Python interface gives values of a type as they are.

    It gives the bytes of float8e4m3fn and float4e2m1 as uint8, and refuses others that numpy does not know by itself.
    """
    return not any(name in type_ for name in ("float8", "float4", "bfloat16", "int4", "int2"))


def _array(value: Any) -> Array:
    """Return the contents of an OrtValue, a tensor in the host's memory."""
    element, shape = value.element_type(), value.shape()
    if _is_passed(value.data_type()):
        return np.asarray(value.numpy())
    size = ceil(prod(shape) * ITEMSIZE_OF_DTYPE[DTYPE_OF_ELEMENT_TYPE[element]])
    contents = ctypes.string_at(value.data_ptr(), size) if size else b""
    tensor = onnx.TensorProto(data_type=element, dims=shape, raw_data=contents)
    return np.asarray(numpy_helper.to_array(tensor))


def _one_by_one(
    read: OnnxModel, positions: Sequence[int], feeds: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    environment: dict[str, object] = dict(feeds)
    for position in positions:
        node = read.nodes[position]
        names = dict.fromkeys(filter(None, node.inputs))
        if not all(name in environment for name in names):
            continue
        node_feed, node_outputs = {name: environment[name] for name in names}, [name for name in node.outputs if name]
        values = {
            name: constant_value(name, array) for name, array in node_feed.items() if isinstance(array, np.ndarray)
        }
        try:
            if read.operators.contradiction(node, values, {}) is not None:
                continue  # the evaluator would make something of it
            # Given a node and no model, the evaluator takes it for one of the newest opset.
            results = ReferenceEvaluator(_model(read, [position], node_feed, node_outputs)).run(None, node_feed)
        except Exception:  # noqa: BLE001  a node that cannot be evaluated stays in the graph
            continue
        environment.update(
            (name, result) for name, result in zip(node_outputs, results, strict=True) if result is not None
        )
    # A list is a sequence, which is no constant, though nodes after it read it.
    arrays = {
        name: environment[name] for name in output_names if isinstance(environment.get(name), np.ndarray | np.generic)
    }
    return {name: freeze(np.asarray(result)) for name, result in arrays.items()}
