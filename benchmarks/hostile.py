"""What hostile models are built of: as little as can be, since they are made anew for each trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from nnadapter.onnx.wire_format import BYTES, varint_bytes

Feed = Mapping[str, Any]
Made = tuple[onnx.ModelProto | bytes | Path, Feed]
"""A model, and what is fed to it."""
X: Feed = {"x": np.ones((2, 3), np.float32)}
HUGE, LARGE = 2**40, 2**31


def info(name: str, shape: Sequence[int | str] | None = ("n", "m"), data_type: int = TensorProto.FLOAT) -> Any:
    """What is said of a value."""
    return helper.make_tensor_value_info(name, data_type, shape)


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; its inputs and outputs are words."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def graph(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    weights: Sequence[Any] = (),
) -> onnx.GraphProto:
    """A graph that reads x of [2, 3] and makes y."""
    taken = [info("x", (2, 3))] if inputs is None else inputs
    return helper.make_graph(nodes, "g", taken, [info("y", None)] if outputs is None else outputs, list(weights))


def model(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto] = (), opset: int = 17) -> onnx.ModelProto:
    """A model of opset 17, with functions of the domain `own`."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def weight(name: str, values: Any, data_type: int = TensorProto.INT64) -> onnx.TensorProto:
    """An initializer."""
    array = np.asarray(values)
    return helper.make_tensor(name, data_type, array.shape, array.reshape(-1).tolist())


def tagged(number: int, contents: bytes) -> bytes:
    """A field of a serialized message: its tag, its length, its contents."""
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(contents)) + contents


def with_fields(nodes: bytes, weights: Sequence[onnx.TensorProto] = ()) -> bytes:
    """A model around serialized fields of a graph: messages of so many take a while."""
    whole = model(helper.make_graph([], "g", [info("x", (2, 3))], [info("y", None)], list(weights)))
    own = whole.graph.SerializeToString()
    return whole.SerializeToString().replace(tagged(7, own), tagged(7, own + nodes))
