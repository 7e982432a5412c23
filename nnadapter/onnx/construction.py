"""Construction of ONNX models: small models, modified copies, parts, and type constraints of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx.defs
import onnx.parser
from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from nnadapter.ir.operand import Array, DataType
from nnadapter.onnx.graphs import (
    OLDEST_IR,
    FunctionKey,
    dense_type,
    dtype_of,
    key_of,
    needed_functions,
    sparse_type,
    subgraphs,
    type_of,
)
from nnadapter.onnx.references import REFERRED_BYTES, fits, referring
from nnadapter.onnx.schemas import since_version
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass, field
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Graph, GraphError, Value

_IR_VERSION = 8
_Message = TypeVar("_Message", bound=Message)
NodeText = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]
"""Op type, inputs, outputs, attributes."""


def parse(text: str) -> onnx.ModelProto:
    """Parse a model in ONNX's textual syntax."""
    return onnx.parser.parse_model(text)


def build(
    nodes: Iterable[NodeText],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    constants: Mapping[str, np.ndarray[Any, Any]],
    opset: int,
) -> onnx.ModelProto:
    """Return a model of these ONNX nodes."""
    like = onnx.ModelProto(ir_version=_IR_VERSION, opset_import=[helper.make_opsetid("", opset)])
    node_protos = [helper.make_node(op_type, read, results, **stated) for op_type, read, results, stated in nodes]
    graph_inputs, graph_outputs = ([info_of(value) for value in values] for values in (inputs, outputs))
    return model_of(
        like, node_protos, graph_inputs, graph_outputs, [initializer_of(*entry) for entry in constants.items()]
    )


def info_of(value: Value) -> onnx.ValueInfoProto:
    """Return the ValueInfoProto of a value."""
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
    """Return a new model with the opset imports, IR version and graph name of `like`."""
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
    """Return a copy."""
    copy: _Message = type(message)()
    copy.CopyFrom(message)
    return copy


def unnamed_bytes(tensor: TensorProto) -> bytes:
    """Return a tensor in serialized form, without its name."""
    nameless = copied(tensor)
    nameless.name = ""
    contents: bytes = nameless.SerializeToString(deterministic=True)
    return contents


def without_shape(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a value without its shape: declared shapes are often symbolic, which hides inferable sizes."""
    copy = copied(value)
    if copy.type.HasField("tensor_type"):
        copy.type.tensor_type.ClearField("shape")
    return copy


def without_inner_shapes(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node without declared shapes in its subgraphs."""
    copy = copied(node)
    for graph in subgraphs(copy):
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
    """Return a copy of a model with `nodes` instead of its own."""
    copy = copied(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def with_inputs_for(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return the model with the initializers `names` as inputs instead."""
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
    """Return a model with inputs replaced by constants of the same name."""
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
    """Return the ValueInfoProto of an initializer."""
    return onnx.ValueInfoProto(name=tensor.name, type=dense_type(tensor))


def array_info(name: str, array: object) -> onnx.ValueInfoProto:
    """Return a ValueInfoProto with an array's type; other objects get no type."""
    if not isinstance(array, np.ndarray):
        return onnx.ValueInfoProto(name=name)
    is_text = array.dtype.kind in "OUS"
    element = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    info: onnx.ValueInfoProto = helper.make_tensor_value_info(name, element, array.shape)
    return info


_SMALL_ELEMENTS = 1024
"""Limit for elements of constants whose contents are passed to inference."""


def add_constants(graph: GraphProto, constants: Mapping[str, Array]) -> None:
    """Add constants for inference: small ones as initializers, others as inputs."""
    for name, array in constants.items():
        if array.size <= _SMALL_ELEMENTS and array.dtype != object:
            graph.initializer.append(initializer_of(name, array))
        else:
            graph.input.append(array_info(name, array))


def untyped(names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    """Return a ValueInfoProto without type for each nonempty name."""
    return [onnx.ValueInfoProto(name=name) for name in names if name]


def tensor_of(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """Return `array` as an initializer; a large one is a reference, so keep the array alive."""
    if array.nbytes < REFERRED_BYTES or array.dtype.hasobject:
        return initializer_of(name, array)
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    header = onnx.TensorProto(name=name, data_type=element, dims=array.shape)
    return referring(header, array) if fits(header, array.nbytes) else initializer_of(name, array)


def initializer_of(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """Return `array` as an inline initializer."""
    tensor: onnx.TensorProto = numpy_helper.from_array(array, name)
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxIndex:
    """Model with its initializers, types and functions by name."""

    model: ModelProto
    initializers: Mapping[str, TensorProto] = field(repr=False)
    """Dense initializers; the last of equal names, as in ONNX Runtime."""
    sparse_initializers: Mapping[str, onnx.SparseTensorProto] = field(repr=False)
    types: Mapping[str, TypeProto] = field(repr=False)
    functions: Mapping[FunctionKey, FunctionProto] = field(repr=False)

    @classmethod
    def of(cls, model: ModelProto) -> OnnxIndex:
        """Return the index of `model`, which must not change."""
        graph = model.graph
        types = {info.name: info.type for group in (graph.value_info, graph.output, graph.input) for info in group}
        types.update((tensor.name, dense_type(tensor)) for tensor in graph.initializer)
        types.update((sparse.values.name, sparse_type(sparse)) for sparse in graph.sparse_initializer)
        return cls(
            model=model,
            initializers={tensor.name: tensor for tensor in graph.initializer},
            sparse_initializers={sparse.values.name: sparse for sparse in graph.sparse_initializer},
            types=types,
            functions={key_of(function): function for function in model.functions},
        )


def extract(
    index: OnnxIndex,
    graph: Graph,
    nodes: Sequence[int],
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
) -> ModelProto:
    """Extract the nodes at ascending positions as a model.

    1. Inputs and outputs have the types in `graph.values`. If these are unknown or not tensors, the model's are used.
    2. All operator sets are imported, but only needed functions copied.
    3. The IR version is at least 4, since constants are not inputs. Metadata is omitted.

    Raises:
        GraphError: a constant has no initializer.
    """
    model = index.model
    part = model_of(
        model,
        (model.graph.node[node] for node in nodes),
        (_typed(index, graph.value(name)) for name in inputs),
        (_typed(index, graph.value(name)) for name in outputs),
        ir_version=max(model.ir_version, OLDEST_IR),
    )
    for name in constants:
        _copy_initializer(index, name, part.graph)
    part.functions.extend(needed_functions(part.graph.node, index.functions).values())
    return part


def _copy_initializer(index: OnnxIndex, name: str, graph: GraphProto) -> None:
    if name in index.initializers:
        graph.initializer.add().CopyFrom(index.initializers[name])
    elif name in index.sparse_initializers:
        graph.sparse_initializer.add().CopyFrom(index.sparse_initializers[name])
    else:
        raise GraphError(f"constant {name!r} has no initializer in the model")


def _typed(index: OnnxIndex, value: Value) -> ValueInfoProto:
    stated = index.types.get(value.name)
    tensor = stated is not None and stated.WhichOneof("value") == "tensor_type"
    same_container = stated is not None and not tensor and dtype_of(stated) == value.dtype
    chosen = stated if same_container else type_of(value) or stated
    return ValueInfoProto(name=value.name, type=chosen)


_NODE_IR_VERSION = 10
"""IR version of written models; allows 4-bit types."""
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrittenNode:
    """Node of a model to be written."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    domain: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Types:
    """Type constraints of an op's schema."""

    inputs: tuple[tuple[str, frozenset[str]], ...]
    """Type parameter or fixed type of each input, with allowed types."""
    outputs: tuple[tuple[str, frozenset[str]], ...]
    variadic: bool


@memoize(1024)
def types_of(op_type: str, opset: int) -> Types:
    """Return the type constraints of an ONNX op."""
    schema = onnx.defs.get_schema(op_type, opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    parameters = {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }
    sides = (schema.inputs, schema.outputs)  # reading `types` of the parameters raises TypeError before onnx 1.21
    inputs, outputs = (
        tuple(
            (parameter.type_str, parameters.get(parameter.type_str) or frozenset([parameter.type_str]))
            for parameter in side
        )
        for side in sides
    )
    return Types(inputs, outputs, bool(schema.inputs) and schema.inputs[-1].option == variadic)


@memoize(1024)
def first_opset(op_type: str, at_least: int) -> int:
    """Return the oldest opset, at least `at_least`, with an ONNX op; one after the newest if none."""
    newest = onnx.defs.onnx_opset_version()
    opsets = (opset for opset in range(at_least, newest + 1) if since_version("", op_type, opset) is not None)
    return next(opsets, newest + 1)


@memoize(1024)
def opset_of_version(op_type: str, version: int, at_least: int) -> int | None:
    """Return the oldest opset, at least `at_least`, with this version of an ONNX op."""
    newest = onnx.defs.onnx_opset_version()
    return next((opset for opset in range(at_least, newest + 1) if since_version("", op_type, opset) == version), None)


def type_text(dtype: DataType) -> str:
    """Return a data type in schema notation: `tensor(float)`."""
    name = str(onnx.TensorProto.DataType.Name(ELEMENT_TYPE_OF_DTYPE[dtype.value])).lower()
    return f"tensor({name})"


def result_types(
    node: WrittenNode, types: Types, input_dtypes: Sequence[DataType | None]
) -> list[tuple[str, DataType | None, frozenset[str]]]:
    """Return name, data type (None if unknown) and allowed types for each result of a node."""
    bound: dict[str, DataType | None] = {}
    for (parameter, _), dtype in zip(types.inputs, input_dtypes, strict=False):
        if dtype is not None:
            bound.setdefault(parameter, dtype)
    named = next((node.attributes[name] for name in _TYPE_ATTRIBUTES if name in node.attributes), None)
    results = []
    for position, name in enumerate(node.outputs):
        parameter, allowed = types.outputs[min(position, len(types.outputs) - 1)]
        inferred = bound[parameter] if parameter in bound else _only(allowed)
        results.append((name, named if isinstance(named, DataType) else inferred, allowed))
    return results


def _only(allowed: frozenset[str]) -> DataType | None:
    return next((dtype for dtype in DataType if {type_text(dtype)} == allowed), None)


def written_model(
    nodes: Iterable[WrittenNode],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    values: Iterable[Value],
    weights: Mapping[str, Array],
    constants: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> onnx.ModelProto:
    """Return a model of these topologically sorted nodes. Large weights are references; keep their arrays alive."""
    like = onnx.ModelProto(ir_version=_NODE_IR_VERSION)
    like.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    tensors = [tensor_of(name, value) for name, value in weights.items()]
    tensors += [initializer_of(name, value) for name, value in constants.items()]
    model = model_of(like, map(message_of, nodes), map(info_of, inputs), map(info_of, outputs), tensors)
    model.graph.value_info.extend(map(info_of, values))
    model.producer_name = "nnadapter"
    return model


def message_of(node: WrittenNode) -> onnx.NodeProto:
    """Return the NodeProto of a node."""
    proto: onnx.NodeProto = helper.make_node(
        node.op_type, node.inputs, node.outputs, node.name or None, domain=node.domain or None
    )
    proto.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    return proto


def _attribute(name: str, value: object) -> onnx.AttributeProto:
    if isinstance(value, DataType):
        value = ELEMENT_TYPE_OF_DTYPE[value.value]
    elif isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    empty = isinstance(value, (tuple, list)) and not value
    attribute: onnx.AttributeProto = helper.make_attribute(
        name, int(value) if isinstance(value, bool) else value, attr_type=onnx.AttributeProto.INTS if empty else None
    )
    return attribute
