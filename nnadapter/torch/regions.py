"""Regions of an ATen graph that run in sessions: the cut, smaller regions after failures, uses of results.

A graph in ATen cut in two: regions for sessions, and the rest, which calls them.

1. Nodes that nothing refuses are grouped into regions, by PyTorch's partitioner: as large as they can be without one
   waiting for itself. A region in which nothing is computed, or only what is the same in every run, stays where it is.
2. Views that only the caller and operators that stay read, stay as well (`torch_models/layouts.py`): there they share
   memory, as they do in PyTorch. But where a device has memory of its own, those that only a backward graph gets are
   computed there.
3. Sizes are no part of regions, and no region waits for them. Where a region reads a size, it takes it from one of its
   tensors that has it, computes it again of such sizes, or else gets it as an input.
4. A region becomes a graph of its own, and a call stands in its place.
5. Random numbers come in the order of the source: none waits for a region that needs later ones.

A region of which no session can be made, cut into smaller ones until those are found that cannot.

Which operator is at fault is seldom said. So a region is halved, each half is a program of its own, and one that fails
is halved again; what is left is single operators, which PyTorch runs. All the programs that come of one region share a
count of failures: where everything fails, for a reason that has nothing to do with operators, there is soon an end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from nnadapter.torch_models.layouts import is_view, last_views
from nnadapter.torch_models.operators import computes, is_random, is_size


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
        *dict.fromkeys(size_input for node in read if is_size(node) for size_input in sizes.required_inputs(node)),
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

    def required_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The sizes that have to be inputs, so that `node` can be had."""
        if self._place(node) is not None:
            return []
        parts = node.all_input_nodes
        if not parts or not all(map(is_size, parts)):
            return [node]
        return [size_input for part in parts for size_input in self.required_inputs(part)]

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


@dataclass(slots=True)
class Failures:
    """How many more programs of one region may fail before what fails is left whole."""

    remaining: int

    def take(self) -> bool:
        """Count one; False if there are none left."""
        self.remaining -= 1
        return self.remaining >= 0


def failures_for(region: Region) -> Failures:
    """Return how often the parts of a region may fail: enough to find three operators among its nodes."""
    return Failures(4 * max(len(region.working), 1).bit_length())


def halves(region: Region) -> tuple[fx.GraphModule, tuple[Region, Region]]:
    """Return a copy of a region's graph, and two halves there, each with half of what does work: two nodes or more."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(region.module.graph, {}))
    module, names = fx.GraphModule(region.module, graph), {node.name for node in region.working}
    nodes = [node for node in graph.nodes if node.op == "call_function" and not is_size(node)]
    return module, _halved(nodes, {node for node in nodes if node.name in names})


def halved(region: Region) -> tuple[Region, Region]:
    """Return the two halves of a region in the graph that it was cut out of, each with half of what does work there."""
    return _halved(region.nodes, set(region.working))


def _halved(nodes: Sequence[fx.Node], work: Collection[fx.Node]) -> tuple[Region, Region]:
    working = [place for place, node in enumerate(nodes) if node in work]
    middle = working[len(working) // 2]
    first = dict.fromkeys(nodes[:middle])
    first.update({node: None for node in nodes[middle:] if node.target is operator.getitem and node.args[0] in first})
    return region_of([*first], work), region_of([node for node in nodes if node not in first], work)


def joined(
    module: fx.GraphModule, parts: Sequence[Region], functions: Sequence[Callable[..., Any]]
) -> Callable[..., tuple[Any, ...]]:
    """Return what runs the halves of a region one after the other, by `functions`, as the region's graph did."""
    call_regions(module, parts, functions)
    run: Callable[..., tuple[Any, ...]] = module.forward
    return run


def weighing_in(
    module: fx.GraphModule, part: Region, is_weight: Callable[[int, Any], bool]
) -> Callable[[int, Any], bool]:
    """Which inputs of a part of `module` may be constants: those of the module's inputs that may be."""
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    places = {place: placeholders.index(node) for place, node in enumerate(part.inputs) if node.op == "placeholder"}
    return lambda place, value: place in places and is_weight(places[place], value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """By the names of nodes, which parts of a graph have as well."""

    visible: Collection[str] = ()
    """Those that somebody else than sessions of ours may look at, and see how they lie in memory."""
    read: Collection[str] = ()
    """Those that operators read which stay in PyTorch; of the graph's inputs also those that are results."""
    returning: Collection[str] = ()
    """Those that may be fed to another graph: gradients."""
    device_tensor_results: Collection[str] = ()
    """Those that come as tensors on a device, though a person has them: what is fed lives there."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Result, and the input that PyTorch writes it into."""


NO_USES = Uses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What becomes of a region's results, each by its place among them."""

    hidden: frozenset[int]
    """Nobody but graphs reads these."""
    returning: frozenset[int]
    """Others that may be fed back."""
    device_tensor_results: frozenset[int]
    """Those that come as tensors on a device, though a person has them."""
    written: Mapping[int, int]
    """Which input each of these is written into, by its place among the region's inputs."""

    @property
    def resident_results(self) -> frozenset[int]:
        """Those that may stay on a device."""
        return self.hidden | self.returning | self.device_tensor_results | self.written.keys()


def computed_results(graph_module: fx.GraphModule, kind: str, shown: int | None) -> frozenset[fx.Node]:
    """Return the results that sessions compute even if they are views, as nobody sees whose memory they share.

    1. Those that the backward graph alone gets: behind the first `shown`.
    2. Gradients that are all of what they look at.
    """
    results = [result for result in graph_module.graph.output_node().args[0] if isinstance(result, fx.Node)]
    if kind == "backward":
        return frozenset(result for result in results if is_view(result) and _covers_base(result))
    visible_results = set(graph_module.graph.output_node().args[0][:shown])
    return frozenset(result for result in results if result not in visible_results)


def _covers_base(view: fx.Node) -> bool:
    view_value, base_value = (node.meta["val"] for node in (view, view.all_input_nodes[0]))
    sizes = [*getattr(view_value, "shape", ()), *getattr(base_value, "shape", ())]
    return bool(sizes) and all(type(size) is int for size in sizes) and bool(view_value.numel() == base_value.numel())


def uses_of(
    graph_module: fx.GraphModule,
    kind: str,
    shown: int | None,
    written: Sequence[int] = (),
    computed: Collection[fx.Node] = (),
    regions: Sequence[Region] = (),
    lying: Collection[int] = (),
) -> Uses:
    """Return who reads the results of a graph.

    Args:
        graph_module: the graph.
        kind: `inference`, `forward` or `backward`.
        shown: how many of its results, the first ones, are seen by others than the backward graph; all if None.
        computed: see `regions_of`.
        regions: of the graph.
        written: which inputs its first results are written into, in their order.
        lying: which of its results lie on a device, though a person has them.
    """
    results, inputs = graph_module.graph.output_node().args[0], graph_module.graph.find_nodes(op="placeholder")
    pairs = zip(results, (inputs[place] for place in written if place < len(inputs)), strict=False)
    outside_nodes, passed = _pytorch_nodes(graph_module, regions), graph_module.graph.output_node().all_input_nodes
    given = _visible_names(results[:shown], last_views(graph_module, computed))
    return Uses(
        visible=given | _names_read(node for node in outside_nodes if not is_size(node)),
        read=_names_read(outside_nodes)
        | {returned_node.name for returned_node in passed if returned_node.op == "placeholder"},
        returning=given if kind == "backward" else (),
        device_tensor_results={results[place].name for place in lying if isinstance(results[place], fx.Node)},
        written={result.name: given.name for result, given in pairs if isinstance(result, fx.Node)},
    )


def _pytorch_nodes(graph_module: fx.GraphModule, regions: Sequence[Region]) -> list[fx.Node]:
    """The nodes that PyTorch runs."""
    inside = {node for region in regions for node in region.nodes}
    return [node for node in graph_module.graph.nodes if node.op == "call_function" and node not in inside]


def _names_read(nodes: Iterable[fx.Node]) -> frozenset[str]:
    return frozenset(input_node.name for node in nodes for input_node in node.all_input_nodes)


def _visible_names(results: Sequence[object], views: Collection[fx.Node]) -> frozenset[str]:
    """Names of results, and of what they are views of."""
    names: set[str] = set()
    waiting = [result for result in results if isinstance(result, fx.Node)]
    while waiting:
        node = waiting.pop()
        names.add(node.name)
        waiting.extend(node.all_input_nodes if node in views else ())
    return frozenset(names)


def roles_of(region: Region, uses: Uses) -> Roles:
    """Return what becomes of the results of a region of a graph whose results are used so."""
    names, inputs = [node.name for node in region.outputs], {node.name: at for at, node in enumerate(region.inputs)}
    visible = {place for place, name in enumerate(names) if name in uses.visible}
    read = {place for place, name in enumerate(names) if name in uses.read}
    targets = {place: inputs.get(uses.written[name]) for place, name in enumerate(names) if name in uses.written}
    written = {place: target for place, target in targets.items() if target is not None}
    return Roles(
        hidden=frozenset(range(len(names))) - visible - read,
        returning=frozenset(place for place, name in enumerate(names) if name in uses.returning) - written.keys(),
        device_tensor_results=frozenset(place for place, name in enumerate(names) if name in uses.device_tensor_results)
        - read,
        written=written,
    )
