"""ONNX on both sides of the partitioner: a model becomes a graph, a segment becomes a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from partition.dtypes import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE
from partition.graph import Graph, GraphError, Node, Value
from partition.onnx_nodes import FunctionKey, captured_names, key_of, needed_functions, plain_domain

_UNTYPED = "?"
"""Stands for the element type of a container that does not tell it."""
_OLDEST_IR = 4
"""The first IR version in which an initialiser need not be a graph input."""


def node_names(model: ModelProto) -> tuple[str, ...]:
    """Return a stable, unique name for every node of the model's graph.

    The model's own name where it is not empty and not used twice, else op type and position, with a number behind it
    where another node is called that.
    """
    nodes = model.graph.node
    own = Counter(node.name for node in nodes)
    taken = set(own)
    return tuple(
        node.name if node.name and own[node.name] == 1 else _free_name(f"{node.op_type}_{index}", taken)
        for index, node in enumerate(nodes)
    )


def _free_name(base: str, taken: set[str]) -> str:
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def value_of(info: ValueInfoProto) -> Value:
    """Return what `info` tells of its value; a dimension below 0 counts as unknown.

    Source: ONNX IR specification, "Types" and "Static tensor shapes".
    """
    return _value(info.name, info.type)


def _value(name: str, type_proto: TypeProto) -> Value:
    if type_proto.HasField("tensor_type"):  # nearly always
        tensor = type_proto.tensor_type
        dtype = DTYPE_OF_ELEMENT_TYPE.get(tensor.elem_type)
        dimensions = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
        return Value(name, dtype, dimensions, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))
    dtype = _dtype_of(type_proto)
    kind = type_proto.WhichOneof("value")
    shaped = kind == "sparse_tensor_type" and type_proto.sparse_tensor_type.HasField("shape")
    shape = tuple(map(_dimension, type_proto.sparse_tensor_type.shape.dim)) if shaped else None
    return Value(name, dtype, shape, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))


def _dimension(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        size: int = dimension.dim_value
        return size if size >= 0 else None
    return str(dimension.dim_param) or None


def _dtype_of(type_proto: TypeProto) -> str | None:
    """The data type's name, such as `float32`, `sequence(float32)` or `map(int64, float32)`; None if untold."""
    match type_proto.WhichOneof("value"):
        case "tensor_type":
            return DTYPE_OF_ELEMENT_TYPE.get(type_proto.tensor_type.elem_type)
        case "sparse_tensor_type":
            return f"sparse({DTYPE_OF_ELEMENT_TYPE.get(type_proto.sparse_tensor_type.elem_type, _UNTYPED)})"
        case "sequence_type":
            return f"sequence({_dtype_of(type_proto.sequence_type.elem_type) or _UNTYPED})"
        case "optional_type":
            return f"optional({_dtype_of(type_proto.optional_type.elem_type) or _UNTYPED})"
        case "map_type":
            key = DTYPE_OF_ELEMENT_TYPE.get(type_proto.map_type.key_type, _UNTYPED)
            return f"map({key}, {_dtype_of(type_proto.map_type.value_type) or _UNTYPED})"
        case "opaque_type":
            return f"opaque({type_proto.opaque_type.domain}.{type_proto.opaque_type.name})"
        case _:
            return None


def _type_of(value: Value) -> TypeProto | None:
    """The type that `value` tells, or None where it tells none."""
    kind, _, rest = (value.dtype or "").partition("(")
    if value.dtype is None or _UNTYPED in value.dtype or kind == "opaque":
        return None
    if kind == "sparse":
        return onnx.helper.make_sparse_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[rest[:-1]], value.shape)
    if kind in ("sequence", "optional"):
        inner = _type_of(Value("", rest[:-1]))
        make = onnx.helper.make_sequence_type_proto if kind == "sequence" else onnx.helper.make_optional_type_proto
        return None if inner is None else make(inner)
    if kind == "map":
        key, _, inner_name = rest[:-1].partition(", ")
        inner = _type_of(Value("", inner_name))
        return None if inner is None else onnx.helper.make_map_type_proto(ELEMENT_TYPE_OF_DTYPE[key], inner)
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[value.dtype], value.shape)


def read_graph(
    model: ModelProto,
    *,
    values: Mapping[str, Value] | None = None,
    names: Sequence[str] | None = None,
    constants: Collection[str] | None = None,
    origins: Sequence[tuple[str, ...]] | None = None,
    atoms: Sequence[tuple[int, ...]] = (),
) -> Graph:
    """Return the graph of a model; node i of the graph is node i of `model.graph`.

    Initialisers, dense and sparse, are constants. One that is a graph input as well is a constant up to IR version 3
    and an input from version 4 on, where a caller may override it.

    Args:
        model: the model; contents of tensors are not looked at.
        values: what else is known of values; comes before what the model says.
        names: a name for every node, in place of `node_names`.
        constants: names of the constants, in place of the rule above.
        origins: for every node, the names of the original nodes that it stands for; itself if left out.
        atoms: groups of nodes, as in `Graph.atoms`.

    Raises:
        GraphError: a value is defined twice, is read before it is made or without being made, or nodes are not in
            a topological order.
    """
    graph = model.graph
    fixed = _constants(model) if constants is None else frozenset(constants)
    called = node_names(model) if names is None else tuple(names)
    inputs = tuple(info.name for info in graph.input if info.name not in fixed)
    if len(set(inputs)) != len(inputs):
        raise GraphError(f"two graph inputs have one name: {list(inputs)}")
    nodes = tuple(
        Node(
            name=name,
            op_type=node.op_type,
            domain=plain_domain(node.domain),
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            captured=tuple(captured_names(node)),
            origins=(name,) if origins is None else origins[index],
        )
        for index, (name, node) in enumerate(zip(called, graph.node, strict=True))
    )
    outputs = tuple(info.name for info in graph.output)
    known = {**_values(graph), **(values or {})}
    found = Graph(nodes, known, fixed, inputs, outputs, tuple(atoms))
    _refuse_undefined(found)
    return found


def _refuse_undefined(graph: Graph) -> None:
    defined = graph.constants.union(graph.inputs, graph.producer)
    for node in graph.nodes:
        for name in node.reads:
            if name not in defined:
                raise GraphError(f"node {node.name!r} reads {name!r}, which nothing makes")
    for name in graph.outputs:
        if name not in defined:
            raise GraphError(f"graph output {name!r} is made by no node, and is neither input nor initializer")


def _constants(model: ModelProto) -> frozenset[str]:
    graph = model.graph
    given = {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}
    overridable = {info.name for info in graph.input} if model.ir_version >= _OLDEST_IR else set()
    return frozenset(given - overridable)


def _values(graph: GraphProto) -> dict[str, Value]:
    infos = (info for group in (graph.value_info, graph.output, graph.input) for info in group)
    found = {info.name: value_of(info) for info in infos}
    found.update((tensor.name, _value(tensor.name, _dense_type(tensor))) for tensor in graph.initializer)
    found.update((each.values.name, _value(each.values.name, _sparse_type(each))) for each in graph.sparse_initializer)
    return found


def _dense_type(tensor: TensorProto) -> TypeProto:
    made: TypeProto = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return made


def _sparse_type(sparse: onnx.SparseTensorProto) -> TypeProto:
    made: TypeProto = onnx.helper.make_sparse_tensor_type_proto(sparse.values.data_type, list(sparse.dims))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxIndex:
    """A model with its parts by name, so that taking a part out costs no more than the part."""

    model: ModelProto
    initializers: Mapping[str, TensorProto] = field(repr=False)
    """Dense initialisers; the last one where a name is used twice, as ONNX Runtime takes it."""
    sparse_initializers: Mapping[str, onnx.SparseTensorProto] = field(repr=False)
    types: Mapping[str, TypeProto] = field(repr=False)
    """The types that the model states, containers with all their depth."""
    functions: Mapping[FunctionKey, FunctionProto] = field(repr=False)
    """Model-local functions by domain, name and overload."""

    @classmethod
    def of(cls, model: ModelProto) -> OnnxIndex:
        """Return the index of `model`, which must not be changed afterwards."""
        graph = model.graph
        types = {info.name: info.type for group in (graph.value_info, graph.output, graph.input) for info in group}
        types.update((tensor.name, _dense_type(tensor)) for tensor in graph.initializer)
        types.update((sparse.values.name, _sparse_type(sparse)) for sparse in graph.sparse_initializer)
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
    """Return a part of a model as a model of its own.

    1. `nodes` are copied unchanged, in the given order, with the initialisers named in `constants`.
    2. Inputs and outputs get the types that `graph.values` knows, else those that the model states; an output of
       unknown type gets none. Containers keep the depth that the model states.
    3. All operator sets are imported as in the model; of its functions only those that the part needs are kept.
    4. The IR version is at least 4, since constants are not inputs of the part. Metadata is left out.

    Args:
        index: the model.
        graph: its graph, as `read_graph` made it.
        nodes: positions of nodes, ascending.
        inputs: values from outside, in the order of the new model's inputs.
        constants: names of initialisers.
        outputs: values in the order of the new model's outputs.

    Raises:
        GraphError: a constant has no initialiser.
    """
    whole = index.model
    part = ModelProto(ir_version=max(whole.ir_version, _OLDEST_IR), opset_import=whole.opset_import)
    part.graph.name = whole.graph.name or "part"
    part.graph.node.extend(whole.graph.node[node] for node in nodes)
    part.graph.input.extend(_typed(index, graph.value(name)) for name in inputs)
    part.graph.output.extend(_typed(index, graph.value(name)) for name in outputs)
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
    same_container = stated is not None and not tensor and _dtype_of(stated) == value.dtype
    chosen = stated if same_container else _type_of(value) or stated
    return ValueInfoProto(name=value.name, type=chosen)


def initializer_of(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """Return `array` as an initialiser called `name`."""
    made: TensorProto = onnx.numpy_helper.from_array(array, name)
    return made
