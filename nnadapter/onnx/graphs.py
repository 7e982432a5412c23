"""A model as the graph that is partitioned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto

from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.values import dense_type, sparse_type, value_of_type, values_of
from partition.graph import Graph, GraphError, Node, Value

OLDEST_IR = 4
"""The first IR version in which an initializer need not be a graph input."""


def node_names(model: ModelProto) -> tuple[str, ...]:
    """Return a stable, unique name for every node of the model's graph.

    The model's own name where it is not empty and not used twice, else op type and position, with a number behind it
    where another node is called that.
    """
    names = [node.name for node in model.graph.node]
    name_counts = Counter(names)
    existing_names = set(name_counts)
    return tuple(
        name if name and name_counts[name] == 1 else _free_name(f"{node.op_type}_{index}", existing_names)
        for index, (name, node) in enumerate(zip(names, model.graph.node, strict=True))
    )


def _free_name(base: str, existing_names: set[str]) -> str:
    name, number = base, 1
    while name in existing_names:
        name, number = f"{base}_{number}", number + 1
    existing_names.add(name)
    return name


def read_nodes(model: ModelProto, origins: Sequence[tuple[str, ...]] | None = None) -> tuple[Node, ...]:
    """Return the nodes of a model's graph; whether they fit together is not looked at.

    Args:
        model: the model.
        origins: for every node, the names of the original nodes that it stands for; itself if left out.
    """
    return tuple(
        node_of(node, name, None if origins is None else origins[index])
        for index, (name, node) in enumerate(zip(node_names(model), model.graph.node, strict=True))
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
    origins: Sequence[tuple[str, ...]] | None = None,
    nodes: tuple[Node, ...] | None = None,
) -> Graph:
    """Return the graph of a model; node i of the graph is node i of `model.graph`.

    Initializers, dense and sparse, are constants. One that is a graph input as well is a constant up to IR version 3
    and an input from version 4 on, where a caller may override it.

    Args:
        model: the model; contents of tensors are not looked at.
        values: what else is known of values; comes before what the model says.
        origins: for every node, the names of the original nodes that it stands for; itself if left out.
        nodes: what `read_nodes` made of this model, where that is known already; `origins` are its then.

    Raises:
        GraphError: a value is defined twice, is read before it is made or without being made, or nodes are not in
            a topological order.
    """
    graph = model.graph
    constants = _constants(model)
    inputs = tuple(info.name for info in graph.input if info.name not in constants)
    if len(set(inputs)) != len(inputs):
        raise GraphError(f"two graph inputs have one name: {list(inputs)}")
    found_nodes = read_nodes(model, origins) if nodes is None else nodes
    outputs = tuple(info.name for info in graph.output)
    values_by_name = {**_values(graph), **(values or {})}
    model_graph = Graph(found_nodes, values_by_name, constants, inputs, outputs)
    _refuse_undefined(model_graph)
    return model_graph


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
