"""A graph in ATen cut in two: regions for sessions, and the rest, which calls them.

1. Nodes that nothing refuses are grouped into regions, by PyTorch's partitioner: as large as they can be without one
   waiting for itself. A region in which nothing is computed, or only what is the same in every run, stays where it is.
2. Views that only the caller and operators that stay read, stay as well (`torch_models/views.py`): there they share
   memory, as they do in PyTorch. But where a device has memory of its own, those that only a backward graph gets are
   computed there (`uses.py`).
3. Sizes are no part of regions, and no region waits for them. Where a region reads a size, it takes it from one of its
   tensors that has it, computes it again of such sizes, or else gets it as an input.
4. A region becomes a graph of its own, and a call stands in its place.
5. Random numbers come in the order of the source: none waits for a region that needs later ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from nnadapter.torch_models.operators import computes, is_random, is_size
from nnadapter.torch_models.views import last_views


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What becomes one session."""

    module: fx.GraphModule
    """Its placeholders are the inputs, in order."""
    inputs: tuple[fx.Node, ...]
    """What it reads, in the graph that it was cut out of."""
    outputs: tuple[fx.Node, ...]
    """What others read of it, there."""
    nodes: tuple[fx.Node, ...]
    """Its nodes, there."""
    working: tuple[fx.Node, ...]
    """Those of them that do work."""


def working(graph_module: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes of a graph that do work: they compute, and of something that may differ from run to run."""
    varying: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or is_random(node) or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
    return {node for node in varying if computes(node)}


def regions_of(
    graph_module: fx.GraphModule, refused: Collection[fx.Node], computed: Collection[fx.Node] = ()
) -> list[Region]:
    """Return the regions of a graph, made of nodes that are not in `refused`; the graph is left as it is.

    Results in `computed` are in regions even if they are views.
    """
    views = last_views(graph_module, computed, readers(refused))
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    supported_nodes = {node for node in nodes if node not in refused and node not in views}
    support = create_op_support(lambda modules, node: node in supported_nodes)
    with _random_in_turn(graph_module.graph):
        partitioner = CapabilityBasedPartitioner(graph_module, support, allows_single_node_partition=True)
        proposed = partitioner.propose_partitions()
    places = {node: place for place, node in enumerate(graph_module.graph.nodes)}
    partitions = [sorted(partition.nodes, key=places.__getitem__) for partition in proposed]
    work = working(graph_module)
    useful_partitions = [nodes for nodes in partitions if not work.isdisjoint(nodes)]
    return [region_of(nodes, work) for nodes in sorted(useful_partitions, key=lambda nodes: places[nodes[0]])]


def readers(refused: Collection[fx.Node]) -> frozenset[fx.Node]:
    """Return those of these nodes that may look at how tensors lie in memory; who asks for a size does not."""
    return frozenset(node for node in refused if not is_size(node))


def call_regions(
    graph_module: fx.GraphModule, regions: Sequence[Region], functions: Sequence[Callable[..., Any]]
) -> None:
    """Put a call in the place of each region: its function takes the region's inputs and gives a tuple."""
    replaced: dict[fx.Node, fx.Node] = {}
    for region, function in zip(regions, functions, strict=True):
        _call(graph_module.graph, region, function, replaced)
    with _random_in_turn(graph_module.graph):
        _put_in_order(graph_module.graph)
    graph_module.recompile()


@contextmanager
def _random_in_turn(graph: fx.Graph) -> Iterator[None]:
    """Let each node that takes random numbers read the one before it, so that they stay in order."""
    nodes = [node for node in graph.nodes if is_random(node)]
    was = [node.kwargs for node in nodes]
    for predecessor, node in pairwise(nodes):
        node.kwargs = {**node.kwargs, "after": predecessor}
    try:
        yield
    finally:
        for node, kwargs in zip(nodes, was, strict=True):
            node.kwargs = kwargs


def _put_in_order(graph: fx.Graph) -> None:
    """Move what a node reads before it, and leave the rest in order."""
    placed: dict[fx.Node, None] = {}
    for node in list(graph.nodes):
        waiting = [node]
        while waiting:
            missing = [input_node for input_node in waiting[-1].all_input_nodes if input_node not in placed]
            if missing:
                waiting.extend(reversed(missing))
            else:
                placed[waiting.pop()] = None
    end = graph.output_node()
    for node in placed:
        if node is not end:
            end.prepend(node)


def _call(graph: fx.Graph, region: Region, function: Callable[..., Any], replaced: dict[fx.Node, fx.Node]) -> None:
    with graph.inserting_after(region.nodes[-1]):
        call = graph.call_function(function, tuple(replaced.get(node, node) for node in region.inputs))
    with graph.inserting_after(call):
        for index, output in enumerate(region.outputs):
            result = graph.call_function(operator.getitem, (call, index))
            result.meta = dict(output.meta)
            output.replace_all_uses_with(result)
            replaced[output] = result
    for node in reversed(region.nodes):
        graph.erase_node(node)


def region_of(nodes: Sequence[fx.Node], work: Collection[fx.Node]) -> Region:
    """Return a region of these nodes, which are in order; none waits for one outside that waits for another of them."""
    inside = set(nodes)
    read = dict.fromkeys(
        input_node for node in nodes for input_node in node.all_input_nodes if input_node not in inside
    )
    tensors = [node for node in read if not is_size(node)]
    sizes = _Sizes(tensors)
    inputs = (
        *tensors,
        *dict.fromkeys(size_input for node in read if is_size(node) for size_input in sizes.given(node)),
    )
    graph = fx.Graph()
    copies = {node: _placeholder(graph, node) for node in inputs}
    for node in read:
        if node not in copies:
            sizes.copy(node, graph, copies)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    graph.output(tuple(copies[node] for node in outputs))
    return Region(
        module=fx.GraphModule({}, graph),
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(nodes),
        working=tuple(node for node in nodes if node in work),
    )


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    placeholder = graph.placeholder(node.name)
    placeholder.meta = dict(node.meta)
    return placeholder


class _Sizes:
    """How a region comes by sizes: from a tensor that it reads, from other sizes, or as inputs."""

    def __init__(self, tensors: Sequence[fx.Node]) -> None:
        dimensions = [(node, axis, size) for node in tensors for axis, size in enumerate(_shape(node))]
        self._places = {_expression(size): (node, axis) for node, axis, size in reversed(dimensions)}

    def given(self, node: fx.Node) -> list[fx.Node]:
        """The sizes that have to be inputs, so that `node` can be had."""
        if self._place(node) is not None:
            return []
        parts = node.all_input_nodes
        if not parts or not all(map(is_size, parts)):
            return [node]
        return [size_input for part in parts for size_input in self.given(part)]

    def copy(self, node: fx.Node, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        """Put what gives a size into the region's graph."""
        place = self._place(node)
        if place is None:
            for part in node.all_input_nodes:
                if part not in copies:
                    self.copy(part, graph, copies)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            return
        source, axis = place
        copies[node] = graph.call_function(torch.ops.aten.sym_size.int, (copies[source], axis))
        copies[node].meta = dict(node.meta)

    def _place(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        return self._places.get(_expression(node.meta["val"]))


def _shape(node: fx.Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _expression(size: Any) -> Any:
    """What a size is computed as, in symbols; two of the same expression are always equal."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat)) else size
