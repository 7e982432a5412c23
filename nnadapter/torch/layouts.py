"""Memory layouts of tensors, and views that PyTorch computes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import fx
from torch.ops import aten

Order = tuple[int, ...]


def order_of(like: Any) -> Order | None:
    """Return axes from slowest to fastest in memory; None for row-major or expanded tensors."""
    strides = [_number(stride) for stride in like.stride()]
    if 0 in strides:
        return None
    order = tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis)))
    moved = [axis for axis in order if _number(like.shape[axis]) != 1]
    return order if moved != sorted(moved) else None


def strides_of_one(like: Any) -> tuple[int, ...] | None:
    """Return strides if they differ from row-major only in axes of size 1; otherwise None."""
    if any(isinstance(size, torch.SymInt) for size in (*like.shape, *like.stride())) or 0 in like.shape:
        return None
    step, differs = 1, False
    for size, stride in reversed(list(zip(like.shape, like.stride(), strict=True))):
        if stride != step:
            if size != 1 or not stride:
                return None
            differs = True
        step *= size
    return tuple(like.stride()) if differs else None


def laid_out(order: Order) -> Callable[[Any], Any]:
    """Return a function that copies a tensor into memory in an axis order."""
    back = inverse(order)
    return lambda tensor: tensor.permute(order).contiguous().permute(back)


def inverse(order: Order) -> Order:
    """Return the permutation that undoes an axis order."""
    return tuple(order.index(axis) for axis in range(len(order)))


def copy_into_layout_of(like: Any) -> Callable[[Any], Any] | None:
    """Return a function that copies into the layout of `like`; None for row-major."""
    order = order_of(like) if isinstance(like, torch.Tensor) else None
    if order is None:
        return None
    arrange = laid_out(order)
    return lambda tensor: tensor if order_of(tensor) == order else arrange(tensor)


def without_elements(like: Any) -> Callable[[Sequence[int]], Any]:
    """Return a function that creates empty tensors of a shape, with strides ordered as in `like`."""
    order = order_of(like) or tuple(range(like.ndim))
    back = inverse(order)
    return lambda shape: torch.empty([shape[axis] for axis in order], dtype=like.dtype).permute(back)


def bytes_of(like: Any) -> int:
    """Return the bytes of a tensor, with hints for dynamic sizes; 8 for a number."""
    if not isinstance(like, torch.Tensor):
        return 8
    return prod(map(_number, like.shape)) * int(like.dtype.itemsize)


def _number(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


_UNSAFE = (aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
"""Operators that return views although their schemas deny it."""


def is_view(node: fx.Node) -> bool:
    """Return True if the results share the memory of the input."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    return node.target in _UNSAFE or bool(getattr(node.target, "is_view", False))


def duplicate_views(
    graph_module: fx.GraphModule, computed: Collection[fx.Node] = (), outside_nodes: Collection[fx.Node] = ()
) -> None:
    """Duplicate views that both sessions and other code read, for the other code.

    Other code is `outside_nodes` and the graph's results, except results in `computed`.
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
    """Return views that only `outside_nodes` and graph results read, except views in `computed`."""
    views: set[fx.Node] = set()
    for node in reversed(graph_module.graph.nodes):
        if is_view(node) and node not in computed and _are_last(node.users, views, outside_nodes):
            views.add(node)
    return views


def _are_last(users: Iterable[fx.Node], views: set[fx.Node], outside_nodes: Collection[fx.Node]) -> bool:
    return all(user.op == "output" or user in views or user in outside_nodes for user in users)
