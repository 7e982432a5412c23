"""`If` whose condition is known gives way to the branch that is taken; weights inside of branches are put outside."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import helper

from nnadapter.onnx.building import copied, with_nodes
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import node_names
from nnadapter.onnx.nodes import graphs_of, with_nested
from nnadapter.onnx.references import bytes_of, fits, is_reference


def inline_branches(
    model: onnx.ModelProto, conditions: Mapping[int, bool]
) -> tuple[onnx.ModelProto, Sequence[tuple[str, int]]]:
    """Return `model` with some `If` nodes replaced by the nodes of one of their branches.

    For each node, the name that it has there, and the position in `model` of the node that it is, or stands inside of.

    1. Inner nodes and values are named for the `If` node, as in `If_3/Add_1`, so that reports say where they are from.
    2. Initializers of the branch become initializers of the model.
    3. What a branch gives out keeps the name of the `If` node's output. A value that the branch did not make, or that
       it gives out twice, is passed on by `Identity`.
    4. Names that graphs inside the branch define for themselves stay; those that they capture are renamed.
    5. Other nodes have the names that they had, also where these say a position.

    Args:
        model: the model; it is not changed.
        conditions: by position of the `If` node, whether its condition holds.
    """
    copy = with_nodes(model, ())
    names, stands_for = node_names(model), list[int]()
    existing_names = {name for node in model.graph.node for name in node.output}
    for position, node in enumerate(model.graph.node):
        if position in conditions:
            branch_name = "then_branch" if conditions[position] else "else_branch"
            branch = next(attribute.g for attribute in node.attribute if attribute.name == branch_name)
            _insert(copy.graph, node, _free(names[position], existing_names), branch)
        else:
            copy.graph.node.add().CopyFrom(node)
            copy.graph.node[-1].name = names[position]
        stands_for.extend([position] * (len(copy.graph.node) - len(stands_for)))
    return copy, list(zip(node_names(copy), stands_for, strict=True))


def with_weights_outside(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose branches capture their large initializers, so that all models made of it share them.

    The same model, where they hold none. Those that a branch gives out stay, since it may give out nothing that it
    captures; so do those inside of loops.
    """
    if not any(map(_large, _branches(model.graph))):
        return model
    copy = copied(model)
    existing_names = _every_name(copy.graph)
    for graph in list(_branches(copy.graph)):
        renamed: dict[str, str] = {}
        for tensor in _large(graph):
            renamed[tensor.name] = _unused(f"{graph.name}/{tensor.name}", existing_names)
            existing_names.add(renamed[tensor.name])
            outside = copy.graph.initializer.add()
            outside.CopyFrom(tensor)
            outside.name = renamed[tensor.name]
        remaining_tensors = [tensor for tensor in graph.initializer if tensor.name not in renamed]
        del graph.initializer[:]
        graph.initializer.extend(remaining_tensors)
        for node in graph.node:
            _rename(node, renamed)
    return copy


def _every_name(graph: onnx.GraphProto) -> set[str]:
    """Names of all values of a graph and of those inside of it, read or not."""
    nodes = list(with_nested(graph.node))
    inner = (subgraph for node in nodes for attribute in node.attribute for subgraph in graphs_of(attribute))
    names = {name for node in nodes for name in (*node.input, *node.output)}
    for graph_proto in (graph, *inner):
        names.update(value.name for value in (*graph_proto.input, *graph_proto.output, *graph_proto.initializer))
        names.update(tensor.values.name for tensor in graph_proto.sparse_initializer)
    return names


def _branches(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The branches of a graph's `If` nodes, and theirs."""
    for node in graph.node:
        if node.op_type == "If" and plain_domain(node.domain) == "":
            for attribute in node.attribute:
                for branch in graphs_of(attribute):
                    yield branch
                    yield from _branches(branch)


def _large(branch: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Initializers of a branch that are worth it, and that it may capture."""
    interface_names = {value.name for value in (*branch.output, *branch.input)}
    return [
        tensor
        for tensor in branch.initializer
        if tensor.name not in interface_names and not is_reference(tensor) and fits(tensor, bytes_of(tensor))
    ]


def _unused(name: str, existing_names: Collection[str]) -> str:
    while name in existing_names:
        name += "_"
    return name


def _free(name: str, existing_names: set[str]) -> str:
    """`name`, or one like it, that no value of the model begins with."""
    while any(value.startswith(f"{name}/") for value in existing_names):
        name += "_"
    return name


def _insert(graph: onnx.GraphProto, node: onnx.NodeProto, name: str, branch: onnx.GraphProto) -> None:
    renamed = _renamed(branch, name)
    defined_names = {output for inner in branch.node for output in inner.output if output}
    passed_on: list[tuple[str, str]] = []
    for result, output_name in zip(branch.output, node.output, strict=False):
        if result.name in defined_names and renamed[result.name] not in node.output:
            renamed[result.name] = output_name or renamed[result.name]
        elif output_name:
            passed_on.append((result.name, output_name))
    for inner, inner_name in zip(branch.node, node_names(onnx.ModelProto(graph=branch)), strict=True):
        added = graph.node.add()
        added.CopyFrom(inner)
        added.name = f"{name}/{inner_name}"
        _rename(added, renamed)
    graph.node.extend(
        helper.make_node("Identity", [renamed.get(source, source)], [output_name], f"{name}/{output_name}")
        for source, output_name in passed_on
    )
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = renamed[tensor.name]
    for sparse in branch.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = renamed[sparse.values.name]
    for info in branch.value_info:
        if info.name in renamed and renamed[info.name] not in node.output:
            graph.value_info.add().CopyFrom(info)
            graph.value_info[-1].name = renamed[info.name]


def _renamed(branch: onnx.GraphProto, name: str) -> dict[str, str]:
    """The new name of everything that a branch defines."""
    local_names = [tensor.name for tensor in branch.initializer]
    local_names.extend(sparse.values.name for sparse in branch.sparse_initializer)
    local_names.extend(output for node in branch.node for output in node.output if output)
    return {value: f"{name}/{value}" for value in local_names}


def _rename(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    for names in (node.input, node.output):
        names[:] = [renamed.get(name, name) for name in names]
    for attribute in node.attribute:
        for graph in graphs_of(attribute):
            _rename_captured(graph, renamed)


def _rename_captured(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    local_names = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    local_names.update(output for node in graph.node for output in node.output)
    outer = {name: replacement for name, replacement in renamed.items() if name not in local_names}
    for node in graph.node:
        _rename(node, outer)
    for info in graph.output:
        info.name = outer.get(info.name, info.name)
