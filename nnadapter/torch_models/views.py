"""What only looks at a tensor in another way, where it is read outside of sessions: PyTorch makes it, as without us.

So it shares memory and lies in it as it does there. AOTAutograd counts on that. Where sizes are open, it makes a view
that the caller gets of the caller's own tensor again, by the strides and the place in memory of what the graph gave; a
copy of the right numbers, which lies in rows, would give other numbers. So it is with operators that stay in PyTorch,
where they read memory by strides.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable

import torch
from torch import fx

_UNSAFE = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default)
"""Operators that give views, though their schema does not say so."""


def is_view(node: fx.Node) -> bool:
    """Return whether a node of a graph in ATen gives a tensor, or several, in the memory of the one that it reads."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    return node.target in _UNSAFE or bool(getattr(node.target, "is_view", False))


def part_views(
    graph_module: fx.GraphModule, computed: Collection[fx.Node] = (), outside_nodes: Collection[fx.Node] = ()
) -> None:
    """Give who reads a view outside of sessions views of its own, where operators in sessions read one on the way too.

    1. They begin at what is no view, so all of them stay in PyTorch.
    2. The graph's results are read so, but for those in `computed`, whose memory nobody sees: they stay as they are.
    3. So is what nodes in `outside_nodes` read, which stay in PyTorch.
    """
    graph, views = graph_module.graph, last_views(graph_module, computed, outside_nodes)
    end = graph.output_node()
    copies: dict[fx.Node, fx.Node] = {}
    for reader in [node for node in graph.nodes if node is end or node in outside_nodes]:
        excluded = computed if reader is end else ()
        for node in [
            input_node
            for input_node in reader.all_input_nodes
            if input_node not in excluded and not _stays(input_node, views)
        ]:
            reader.replace_input_with(node, _copied(node, copies))
    if copies:
        graph.eliminate_dead_code()
        graph_module.recompile()


def _stays(node: fx.Node, views: set[fx.Node]) -> bool:
    """Whether a node stays in PyTorch with all the views that it comes by, or is no view."""
    return not is_view(node) or (
        node in views and all(_stays(input_node, views) for input_node in node.all_input_nodes)
    )


def _copied(node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    if not is_view(node):
        return node
    if node not in copies:
        read = {input_node: _copied(input_node, copies) for input_node in node.all_input_nodes}
        with node.graph.inserting_after(node):
            copies[node] = node.graph.node_copy(node, read.__getitem__)
    return copies[node]


def last_views(
    graph_module: fx.GraphModule, computed: Collection[fx.Node] = (), outside_nodes: Collection[fx.Node] = ()
) -> set[fx.Node]:
    """Return the views that only such views, nodes in `outside_nodes` and the results read; but none in `computed`."""
    views: set[fx.Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if is_view(node) and node not in computed and _are_last(node.users, views, outside_nodes):
            views.add(node)
    return views


def _are_last(users: Iterable[fx.Node], views: set[fx.Node], outside_nodes: Collection[fx.Node]) -> bool:
    return all(user.op == "output" or user in views or user in outside_nodes for user in users)
