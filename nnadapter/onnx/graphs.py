"""ONNX messages as graphs: nodes, values, shape-derived values, and a limit on nested calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, DataType, OperandType, dtype_name
from nnadapter.onnx.domains import plain_domain
from partition import Graph, GraphError, Node, Value
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""
RUNNING_GRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
BROADCASTING_OPSET = 7
"""First opset with numpy broadcasting."""


def graphs_of(attribute: onnx.AttributeProto) -> tuple[GraphProto, ...]:
    """Return the graphs in an attribute."""
    return (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def holds_graph(node: NodeProto) -> bool:
    """Return whether a node has subgraphs."""
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the opset version of each imported domain."""
    return {plain_domain(entry.domain): entry.version for entry in imports}


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attribute:
        yield from graphs_of(attribute)


def captured_names(node: NodeProto) -> dict[str, None]:
    """Return outer names that subgraphs read at any depth, in order of first use."""
    outer_names: dict[str, None] = {}
    for graph in subgraphs(node):
        inner = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
        inner.update(sparse.values.name for sparse in graph.sparse_initializer)
        for part in graph.node:
            outer_names.update(
                (name, None) for name in (*part.input, *captured_names(part)) if name and name not in inner
            )
            inner.update(part.output)
        outer_names.update((info.name, None) for info in graph.output if info.name not in inner)
    return outer_names


def with_nested(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, each followed by nodes of its subgraphs at any depth."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from with_nested(graph.node)


def key_of(proto: NodeProto | FunctionProto) -> FunctionKey:
    """Return the key of a function, or of a node's callee."""
    name = proto.op_type if isinstance(proto, NodeProto) else proto.name
    return plain_domain(proto.domain), name, proto.overload


def needed_functions(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]
) -> dict[FunctionKey, FunctionProto]:
    """Return the functions that nodes call, directly or indirectly."""
    callees: dict[FunctionKey, FunctionProto] = {}
    waiting = list(nodes) if functions else []
    while waiting:
        for node in with_nested([waiting.pop()]):
            key = key_of(node)
            if key in functions and key not in callees:
                callees[key] = functions[key]
                waiting.extend(functions[key].node)
    return callees


_OPERAND_TYPES = frozenset(map(str, DataType))
_UNTYPED = "?"


def value_of(info: ValueInfoProto) -> Value:
    """Return the value that `info` describes. Source: ONNX IR specification, "Static tensor shapes"."""
    return value_of_type(info.name, info.type)


def values_of(infos: Iterable[ValueInfoProto]) -> dict[str, Value]:
    """Return values by name; the last of equal names wins."""
    values_by_type: dict[bytes, Value] = {}
    values_by_name = {}
    for info in infos:
        name, type_proto = info.name, info.type
        written = type_proto.SerializeToString()
        like = values_by_type.get(written)
        if like is None:
            like = values_by_type[written] = value_of_type(name, type_proto)
        values_by_name[name] = Value(name, like.dtype, like.shape, like.itemsize)
    return values_by_name


def constant_value(name: str, array: Array) -> Value:
    """Return the `Value` of a constant."""
    if array.dtype == object:
        return Value(name, "string", array.shape)
    dtype = dtype_name(array.dtype)
    return Value(name, dtype, array.shape, ITEMSIZE_OF_DTYPE[dtype])


def operand_type(value: Value) -> OperandType | None:
    """Return the operand type of a value; None for dynamic shapes and types that the adapter IR lacks."""
    dimensions, dtype = value.static_shape, value.dtype or ""
    return OperandType(DataType(dtype), dimensions) if dimensions is not None and dtype in _OPERAND_TYPES else None


def value_of_type(name: str, type_proto: TypeProto) -> Value:
    """Return the `Value` of this name and type."""
    if type_proto.HasField("tensor_type"):  # the most common case
        tensor = type_proto.tensor_type
        dtype = DTYPE_OF_ELEMENT_TYPE.get(tensor.elem_type)
        dimensions = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
        return Value(name, dtype, dimensions, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))
    dtype = dtype_of(type_proto)
    kind = type_proto.WhichOneof("value")
    shaped = kind == "sparse_tensor_type" and type_proto.sparse_tensor_type.HasField("shape")
    shape = tuple(map(_dimension, type_proto.sparse_tensor_type.shape.dim)) if shaped else None
    return Value(name, dtype, shape, ITEMSIZE_OF_DTYPE.get(dtype or "", 0))


def _dimension(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        size: int = dimension.dim_value
        return size if size >= 0 else None
    return str(dimension.dim_param) or None


def dtype_of(type_proto: TypeProto) -> str | None:
    """Return the data type, such as `float32` or `map(int64, float32)`; None if unknown."""
    match type_proto.WhichOneof("value"):
        case "tensor_type":
            return DTYPE_OF_ELEMENT_TYPE.get(type_proto.tensor_type.elem_type)
        case "sparse_tensor_type":
            return f"sparse({DTYPE_OF_ELEMENT_TYPE.get(type_proto.sparse_tensor_type.elem_type, _UNTYPED)})"
        case "sequence_type":
            return f"sequence({dtype_of(type_proto.sequence_type.elem_type) or _UNTYPED})"
        case "optional_type":
            return f"optional({dtype_of(type_proto.optional_type.elem_type) or _UNTYPED})"
        case "map_type":
            key = DTYPE_OF_ELEMENT_TYPE.get(type_proto.map_type.key_type, _UNTYPED)
            return f"map({key}, {dtype_of(type_proto.map_type.value_type) or _UNTYPED})"
        case "opaque_type":
            return f"opaque({type_proto.opaque_type.domain}.{type_proto.opaque_type.name})"
        case _:
            return None


def type_of(value: Value) -> TypeProto | None:
    """Return the ONNX type of `value`; None if it is unknown."""
    kind, _, arguments = (value.dtype or "").partition("(")
    if value.dtype is None or _UNTYPED in value.dtype or kind == "opaque":
        return None
    if kind == "sparse":
        return onnx.helper.make_sparse_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[arguments[:-1]], value.shape)
    if kind in ("sequence", "optional"):
        inner = type_of(Value("", arguments[:-1]))
        make = onnx.helper.make_sequence_type_proto if kind == "sequence" else onnx.helper.make_optional_type_proto
        return None if inner is None else make(inner)
    if kind == "map":
        key, _, inner_name = arguments[:-1].partition(", ")
        inner = type_of(Value("", inner_name))
        return None if inner is None else onnx.helper.make_map_type_proto(ELEMENT_TYPE_OF_DTYPE[key], inner)
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPE_OF_DTYPE[value.dtype], value.shape)


def infos_of(values: Iterable[Value]) -> dict[str, ValueInfoProto]:
    """Return a ValueInfoProto by name; values of unknown type are omitted."""
    types = ((value.name, type_of(value)) for value in values)
    return {name: ValueInfoProto(name=name, type=type_) for name, type_ in types if type_ is not None}


def dense_type(tensor: onnx.TensorProto) -> TypeProto:
    """Return the type of an initializer."""
    type_proto: TypeProto = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return type_proto


def sparse_type(sparse: onnx.SparseTensorProto) -> TypeProto:
    """Return the type of a sparse initializer."""
    type_proto: TypeProto = onnx.helper.make_sparse_tensor_type_proto(sparse.values.data_type, list(sparse.dims))
    return type_proto


OLDEST_IR = 4
"""First IR version with initializers that are not inputs."""


def node_names(model: ModelProto) -> tuple[str, ...]:
    """Return a stable, unique name per node: its own, or op type and position if that is missing or repeated."""
    names = [node.name for node in model.graph.node]
    name_counts = Counter(names)
    existing_names = set(name_counts)
    return tuple(
        name if name and name_counts[name] == 1 else free_name(f"{node.op_type}_{index}", existing_names)
        for index, (name, node) in enumerate(zip(names, model.graph.node, strict=True))
    )


def free_name(base: str, existing_names: set[str]) -> str:
    """Return `base`, with a number appended if the name exists, and add the result to `existing_names`."""
    name, number = base, 1
    while name in existing_names:
        name, number = f"{base}_{number}", number + 1
    existing_names.add(name)
    return name


def read_nodes(model: ModelProto, origins: Sequence[tuple[str, ...]] | None = None) -> tuple[Node, ...]:
    """Return the nodes of a model's graph, without checks; `origins` default to the nodes' own names."""
    return tuple(
        node_of(node, name, None if origins is None else origins[index])
        for index, (name, node) in enumerate(zip(node_names(model), model.graph.node, strict=True))
    )


def node_of(proto: NodeProto, name: str, origins: tuple[str, ...] | None = None) -> Node:
    """Convert a NodeProto to a node called `name`; `origins` default to this name."""
    return Node(
        name,
        proto.op_type,
        plain_domain(proto.domain),
        tuple(proto.input),
        tuple(proto.output),
        tuple(captured_names(proto)) if proto.attribute else (),
        (name,) if origins is None else origins,
    )


def read_graph(
    model: ModelProto,
    *,
    values: Mapping[str, Value] | None = None,
    origins: Sequence[tuple[str, ...]] | None = None,
    nodes: tuple[Node, ...] | None = None,
) -> Graph:
    """Return the graph of a model; node i is node i of `model.graph`.

    An initializer that is also an input is a constant before IR version 4, and an overridable input since then.
    `values` override value infos. `nodes` are the model's nodes as already read.

    Raises:
        GraphError: a value is defined twice or never, or nodes are not in topological order.
    """
    graph = model.graph
    constants = _constants(model)
    inputs = tuple(info.name for info in graph.input if info.name not in constants)
    if len(set(inputs)) != len(inputs):
        raise GraphError(f"two graph inputs have the same name, among {list(inputs)}")
    model_graph = Graph(
        read_nodes(model, origins) if nodes is None else nodes,
        {**_values(graph), **(values or {})},
        constants,
        inputs,
        tuple(info.name for info in graph.output),
    )
    _refuse_undefined(model_graph)
    return model_graph


def _refuse_undefined(graph: Graph) -> None:
    defined = graph.constants.union(graph.inputs, graph.producer)
    for node in graph.nodes:
        for name in node.reads:
            if name not in defined:
                raise GraphError(
                    f"node {node.name!r} reads {name!r}, which has no producer and is neither input nor initializer"
                )
    for name in graph.outputs:
        if name not in defined:
            raise GraphError(f"graph output {name!r} has no producer and is neither input nor initializer")


def _constants(model: ModelProto) -> frozenset[str]:
    graph = model.graph
    initializer_names = {tensor.name for tensor in graph.initializer} | {
        sparse.values.name for sparse in graph.sparse_initializer
    }
    overridable = {info.name for info in graph.input} if model.ir_version >= OLDEST_IR else set()
    return frozenset(initializer_names - overridable)


def _values(graph: GraphProto) -> dict[str, Value]:
    values_by_name = values_of(info for group in (graph.value_info, graph.output, graph.input) for info in group)
    values_by_name.update((tensor.name, value_of_type(tensor.name, dense_type(tensor))) for tensor in graph.initializer)
    sparse = ((initializer.values.name, sparse_type(initializer)) for initializer in graph.sparse_initializer)
    values_by_name.update((name, value_of_type(name, type_proto)) for name, type_proto in sparse)
    return values_by_name


MEASURING = frozenset(("Shape", "Size"))
"""ONNX ops that read only the shape of their input."""


def size_names(model: onnx.ModelProto) -> frozenset[str]:
    """Return names of values that depend only on shapes and constants; nodes must be in topological order."""
    computable_names = {tensor.name for tensor in model.graph.initializer}
    names: set[str] = set()
    for node in model.graph.node:
        measures = node.op_type in MEASURING and not plain_domain(node.domain)
        if measures or (
            computable_names.issuperset(filter(None, node.input)) and computable_names.issuperset(captured_names(node))
        ):
            names.update(node.output)
            computable_names.update(node.output)
    return frozenset(names)


def has_open_inputs(model: onnx.ModelProto) -> bool:
    """Return whether an input has a dynamic dimension or unknown rank."""
    tensors = (value.type.tensor_type for value in model.graph.input if value.type.HasField("tensor_type"))
    return any(
        not tensor.HasField("shape") or any(not size.HasField("dim_value") for size in tensor.shape.dim)
        for tensor in tensors
    )


def check_calls(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for recursive functions and for calls that expand to too many nodes.

    onnx and ONNX Runtime expand nested calls: forty functions that each call the next one twice yield 2 ** 40 nodes.
    """
    if not model.functions:
        return
    bodies = {key_of(function): [key_of(node) for node in with_nested(function.node)] for function in model.functions}
    nodes = [key_of(node) for node in with_nested(model.graph.node)]
    sizes = _sizes(bodies)
    written = len(nodes) + sum(map(len, bodies.values()))
    most = max(limits.EXPANDED_NODES, limits.EXPANSION * written)
    total = sum(sizes.get(key, 1) for key in nodes)
    largest = max((*sizes.values(), total))
    if largest > most:
        count = f"{largest:,}" if largest < 10**9 else "more than a billion"
        raise InvalidModelError(
            f"calls of the model's functions expand to {count} nodes, expected at most {most:,} for "
            f"{written:,} in the model; export it without functions, or with fewer nested calls"
        )


def check_calls_in(source: str | os.PathLike[str] | bytes) -> None:
    """Apply `check_calls` to a path or contents; unparsable ones pass."""
    check_in(source, check_calls)


def check_in(source: str | os.PathLike[str] | bytes, check: Callable[[onnx.ModelProto], None]) -> None:
    """Apply a check to the model in a path or contents; unparsable ones pass."""
    model = onnx.ModelProto()
    with suppress(DecodeError, UnicodeDecodeError):
        model.ParseFromString(source if isinstance(source, bytes) else Path(source).read_bytes())
        check(model)


def _sizes(bodies: dict[FunctionKey, list[FunctionKey]]) -> dict[FunctionKey, int]:
    sizes: dict[FunctionKey, int] = {}
    for function in bodies:
        path, entered = [function], set[FunctionKey]()
        while path:
            current = path[-1]
            waiting = [callee for callee in dict.fromkeys(bodies[current]) if callee in bodies and callee not in sizes]
            if current in sizes or not waiting:
                sizes[path.pop()] = sum(sizes.get(callee, 1) for callee in bodies[current])
                continue
            if current in entered:
                raise InvalidModelError(
                    f"function {current[1]!r} of domain {current[0]!r} calls itself, directly or through others; "
                    "export the model again"
                )
            entered.add(current)
            path += waiting
    return sizes
