"""What ONNX nodes hold and refer to: inner graphs, outer values, functions of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto

from nnadapter.onnx.domains import plain_domain

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""
RUNNING_GRAPHS = frozenset(("If", "Loop", "Scan", "SequenceMap"))
"""ONNX's ops that run graphs of their own."""
BROADCASTING_OPSET = 7
"""The opset since which operands are broadcast as in numpy."""


def graphs_of(attribute: AttributeProto) -> tuple[GraphProto, ...]:
    """Return the graphs that an attribute holds; nearly none holds one."""
    return (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def holds_graph(node: NodeProto) -> bool:
    """Whether a node runs a graph of its own."""
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def opsets_of(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of every operator set that is imported, by domain; ONNX's own is the empty one."""
    return {plain_domain(entry.domain): entry.version for entry in imports}


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from graphs_of(attribute)


def captured_names(node: NodeProto) -> dict[str, None]:
    """Return the names that the node's sub-graphs, at any depth, read from outside, in order of first use."""
    outer_names: dict[str, None] = {}
    for graph in _subgraphs(node):
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
    """Every node, and those of the graphs that it holds, at any depth."""
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from with_nested(graph.node)


def key_of(proto: NodeProto | FunctionProto) -> FunctionKey:
    """What tells a function from others, or which function a node calls if there is one."""
    name = proto.op_type if isinstance(proto, NodeProto) else proto.name
    return plain_domain(proto.domain), name, proto.overload


def needed_functions(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]
) -> dict[FunctionKey, FunctionProto]:
    """Return those of `functions` that the nodes call, themselves or through other functions."""
    callees: dict[FunctionKey, FunctionProto] = {}
    waiting = list(nodes) if functions else []
    while waiting:
        for node in with_nested([waiting.pop()]):
            key = key_of(node)
            if key in functions and key not in callees:
                callees[key] = functions[key]
                waiting.extend(functions[key].node)
    return callees
