"""Models put together: parts of other models, small ones, and copies in which something stands in another place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx.parser
from google.protobuf.message import Message
from onnx import helper, numpy_helper

from nnadapter.onnx.nodes import graphs_of
from nnadapter.onnx.references import REFERRED_BYTES, fits, referring
from nnadapter.onnx.values import dense_type, type_of
from partition.graph import Value

_IR_VERSION = 8
"""Of models that are made from nothing: every ONNX Runtime that this package runs with knows it."""
_Message = TypeVar("_Message", bound=Message)
NodeText = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]
"""Op type, inputs, outputs and attributes of a node of ONNX's own."""


def parse(text: str) -> onnx.ModelProto:
    """Return the model that `text` says in ONNX's textual syntax."""
    return onnx.parser.parse_model(text)


def build(
    nodes: Iterable[NodeText],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    constants: Mapping[str, np.ndarray[Any, Any]],
    opset: int,
) -> onnx.ModelProto:
    """Return a model of nodes of ONNX's own."""
    like = onnx.ModelProto(ir_version=_IR_VERSION, opset_import=[helper.make_opsetid("", opset)])
    node_protos = [helper.make_node(op_type, read, results, **stated) for op_type, read, results, stated in nodes]
    graph_inputs, graph_outputs = ([info_of(value) for value in values] for values in (inputs, outputs))
    return model_of(
        like, node_protos, graph_inputs, graph_outputs, [initializer_of(*entry) for entry in constants.items()]
    )


def info_of(value: Value) -> onnx.ValueInfoProto:
    """What is known of a value, as models say it."""
    return onnx.ValueInfoProto(name=value.name, type=type_of(value))


def model_of(
    like: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] = (),
    initializers: Iterable[onnx.TensorProto] = (),
    *,
    ir_version: int | None = None,
    functions: Iterable[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Return a model of its own that imports what `like` does; IR version as there if none is given."""
    model = onnx.ModelProto(
        ir_version=ir_version or like.ir_version, opset_import=like.opset_import, functions=functions
    )
    model.graph.name = like.graph.name or "part"
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    model.graph.output.extend(outputs)
    model.graph.initializer.extend(initializers)
    return model


def copied(message: _Message) -> _Message:
    """Return a message like `message`."""
    copy: _Message = type(message)()
    copy.CopyFrom(message)
    return copy


def without_shape(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a value of which no shape is said: what a model says is often a name, and hides what can be inferred."""
    copy = copied(value)
    if copy.type.HasField("tensor_type"):
        copy.type.tensor_type.ClearField("shape")
    return copy


def without_inner_shapes(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node in whose graphs, at any depth, nothing is said of shapes."""
    copy = copied(node)
    for graph in (graph for attribute in copy.attribute for graph in graphs_of(attribute)):
        for values in (graph.input, graph.output):
            bare = [without_shape(value) for value in values]
            del values[:]
            values.extend(bare)
        del graph.value_info[:]
        nodes = [without_inner_shapes(inner) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return copy


def with_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a copy of a model with other nodes."""
    copy = copied(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def with_inputs_for(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return a model to which some of its initializers are given as inputs: no weights, and no more than 2 GiB."""
    if not names:
        return model
    input_names = {value.name for value in model.graph.input}
    moved = [tensor for tensor in model.graph.initializer if tensor.name in names and tensor.name not in input_names]
    light = model_of(
        model,
        model.graph.node,
        [*model.graph.input, *map(tensor_info, moved)],
        model.graph.output,
        (tensor for tensor in model.graph.initializer if tensor.name not in names),
        functions=model.functions,
    )
    light.graph.value_info.extend(model.graph.value_info)
    return light


def with_constants(model: onnx.ModelProto, constants: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    """Return a model whose inputs called as `constants` are these."""
    names = {tensor.name for tensor in constants}
    bound_model = model_of(
        model,
        model.graph.node,
        (value for value in model.graph.input if value.name not in names),
        model.graph.output,
        (*model.graph.initializer, *constants),
        functions=model.functions,
    )
    bound_model.graph.value_info.extend(model.graph.value_info)
    return bound_model


def tensor_info(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """Return an initializer's name and type."""
    return onnx.ValueInfoProto(name=tensor.name, type=dense_type(tensor))


def array_info(name: str, array: object) -> onnx.ValueInfoProto:
    """Return the name and type of a value that holds `array`; what is no array has no type."""
    if not isinstance(array, np.ndarray):
        return onnx.ValueInfoProto(name=name)
    is_text = array.dtype.kind in "OUS"
    element = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    info: onnx.ValueInfoProto = helper.make_tensor_value_info(name, element, array.shape)
    return info


def untyped(names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    """Return values of which nothing but the name is known; absent ones are left out."""
    return [onnx.ValueInfoProto(name=name) for name in names if name]


def tensor_of(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """Return `array` as an initializer called `name`, which refers to it where it is large: whoever asks keeps it."""
    if array.nbytes < REFERRED_BYTES or array.dtype.hasobject:
        return initializer_of(name, array)
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    header = onnx.TensorProto(name=name, data_type=element, dims=array.shape)
    return referring(header, array) if fits(header, array.nbytes) else initializer_of(name, array)


def initializer_of(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """Return `array` as an initializer called `name`."""
    tensor: onnx.TensorProto = numpy_helper.from_array(array, name)
    return tensor
