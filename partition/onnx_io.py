"""ONNX on both sides of the partitioner: a model becomes a graph, a segment becomes a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from partition.graph import Graph, GraphError, Node, Value
from partition.onnx_nodes import FunctionKey, captured_names, key_of, needed_functions, plain_domain
from partition.onnx_values import dense_type, dtype_of, sparse_type, type_of, value_of_type, values_of

_OLDEST_IR = 4
"""The first IR version in which an initializer need not be a graph input."""


def node_names(model: ModelProto) -> tuple[str, ...]:
    """Return a stable, unique name for every node of the model's graph.

    The model's own name where it is not empty and not used twice, else op type and position, with a number behind it
    where another node is called that.
    """
    names = [node.name for node in model.graph.node]
    own = Counter(names)
    taken = set(own)
    return tuple(
        name if name and own[name] == 1 else _free_name(f"{node.op_type}_{index}", taken)
        for index, (name, node) in enumerate(zip(names, model.graph.node, strict=True))
    )


def _free_name(base: str, taken: set[str]) -> str:
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def read_nodes(
    model: ModelProto, names: Sequence[str] | None = None, origins: Sequence[tuple[str, ...]] | None = None
) -> tuple[Node, ...]:
    """Return the nodes of a model's graph; whether they fit together is not looked at.

    Args:
        model: the model.
        names: a name for every node, in place of `node_names`.
        origins: for every node, the names of the original nodes that it stands for; itself if left out.
    """
    called = node_names(model) if names is None else names
    return tuple(
        node_of(node, name, None if origins is None else origins[index])
        for index, (name, node) in enumerate(zip(called, model.graph.node, strict=True))
    )


def node_of(proto: NodeProto, name: str, origins: tuple[str, ...] | None = None) -> Node:
    """Return a node of that name; without `origins` it stands for itself."""
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
    names: Sequence[str] | None = None,
    constants: Collection[str] | None = None,
    origins: Sequence[tuple[str, ...]] | None = None,
    atoms: Sequence[tuple[int, ...]] = (),
    nodes: tuple[Node, ...] | None = None,
) -> Graph:
    """Return the graph of a model; node i of the graph is node i of `model.graph`.

    Initializers, dense and sparse, are constants. One that is a graph input as well is a constant up to IR version 3
    and an input from version 4 on, where a caller may override it.

    Args:
        model: the model; contents of tensors are not looked at.
        values: what else is known of values; comes before what the model says.
        names: a name for every node, in place of `node_names`.
        constants: names of the constants, in place of the rule above.
        origins: for every node, the names of the original nodes that it stands for; itself if left out.
        atoms: groups of nodes, as in `Graph.atoms`.
        nodes: what `read_nodes` made of this model, where that is known already; `names` and `origins` are its then.

    Raises:
        GraphError: a value is defined twice, is read before it is made or without being made, or nodes are not in
            a topological order.
    """
    graph = model.graph
    fixed = _constants(model) if constants is None else frozenset(constants)
    inputs = tuple(info.name for info in graph.input if info.name not in fixed)
    if len(set(inputs)) != len(inputs):
        raise GraphError(f"two graph inputs have one name: {list(inputs)}")
    found_nodes = read_nodes(model, names, origins) if nodes is None else nodes
    outputs = tuple(info.name for info in graph.output)
    known = {**_values(graph), **(values or {})}
    found = Graph(found_nodes, known, fixed, inputs, outputs, tuple(atoms))
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
    found = values_of(info for group in (graph.value_info, graph.output, graph.input) for info in group)
    found.update((tensor.name, value_of_type(tensor.name, dense_type(tensor))) for tensor in graph.initializer)
    sparse = ((each.values.name, sparse_type(each)) for each in graph.sparse_initializer)
    found.update((name, value_of_type(name, type_proto)) for name, type_proto in sparse)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxIndex:
    """A model with its parts by name, so that taking a part out costs no more than the part."""

    model: ModelProto
    initializers: Mapping[str, TensorProto] = field(repr=False)
    """Dense initializers; the last one where a name is used twice, as ONNX Runtime takes it."""
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
    """Return a part of a model as a model of its own.

    1. `nodes` are copied unchanged, in the given order, with the initializers named in `constants`.
    2. Inputs and outputs get the types that `graph.values` knows, else those that the model states; an output of
       unknown type gets none. Containers keep the depth that the model states.
    3. All operator sets are imported as in the model; of its functions only those that the part needs are kept.
    4. The IR version is at least 4, since constants are not inputs of the part. Metadata is left out.

    Args:
        index: the model.
        graph: its graph, as `read_graph` made it.
        nodes: positions of nodes, ascending.
        inputs: values from outside, in the order of the new model's inputs.
        constants: names of initializers.
        outputs: values in the order of the new model's outputs.

    Raises:
        GraphError: a constant has no initializer.
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
    same_container = stated is not None and not tensor and dtype_of(stated) == value.dtype
    chosen = stated if same_container else type_of(value) or stated
    return ValueInfoProto(name=value.name, type=chosen)


def initializer_of(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """Return `array` as an initializer called `name`."""
    made: TensorProto = onnx.numpy_helper.from_array(array, name)
    return made
