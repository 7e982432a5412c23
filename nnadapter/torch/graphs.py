"""One graph of AOTAutograd's, compiled: regions are sessions, the rest runs in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import fx

from nnadapter.torch.cutting import Region, call_regions, last_views, regions_of
from nnadapter.torch.exporting import NotExported, export
from nnadapter.torch.operators import computes, is_random, refusal
from nnadapter.torch.program import Program
from nnadapter.torch.settings import Settings
from nnadapter.torch.sources import line_of
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx

Boxed = Callable[[list[Any]], Any]
"""How AOTAutograd calls what was compiled: with a list, which is emptied, so that what is not needed any more goes."""
IsWeight = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An operator that stays in PyTorch."""

    operator: str
    """As `aten.NAME.OVERLOAD`."""
    refusal: Unsupported
    line: str
    """`FILE:LINE` of the person's source; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A compiled graph, and what is known of it."""

    kind: str
    """`inference`, `forward` or `backward`; `captured` where PyTorch made none of these of what it captured."""
    operators: int
    """How many operators do work."""
    delegated: int
    """How many of these are in regions for sessions."""
    programs: tuple[Program, ...]
    left: tuple[Left, ...]


def compile_graph(
    graph_module: fx.GraphModule, kind: str, settings: Settings, is_weight: IsWeight, shown: int | None = None
) -> tuple[Graph, Boxed]:
    """Return a graph in ATen compiled: what can go to sessions does, and what cannot stays, with the reason.

    Args:
        graph_module: functional, as AOTAutograd makes it; it is changed.
        kind: `inference`, `forward` or `backward`.
        settings: what sessions are made with.
        is_weight: whether a tensor that the graph is called with may be a constant.
        shown: how many of its results, the first ones, are seen by others than the backward graph; all if None.
    """
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    refused = {node: reason for node in nodes if (reason := refusal(node)) is not None}
    exported = _exported(graph_module, refused)
    regions = [region for region, _ in exported]
    seen = _visible(graph_module, shown)
    programs = [Program(region, model, settings, _weighs(region, is_weight), seen) for region, model in exported]
    graph = Graph(
        kind=kind,
        operators=sum(map(computes, nodes)),
        delegated=sum(region.computing for region in regions),
        programs=tuple(programs),
        left=tuple(_left(nodes, refused)),
    )
    return graph, _runner(graph_module, nodes, regions, programs)


def _exported(
    graph_module: fx.GraphModule, refused: dict[fx.Node, Unsupported]
) -> list[tuple[Region, onnx.ModelProto]]:
    """Regions with their models. What the exporter fails at is added to `refused`, and regions are made again."""
    known: dict[tuple[fx.Node, ...], tuple[Region, onnx.ModelProto]] = {}
    while True:
        regions = regions_of(graph_module, refused)
        before = len(refused)
        for region in regions:
            if region.nodes not in known:
                try:
                    known[region.nodes] = (
                        region,
                        export(region.module, [f"given.{node.name}" for node in region.inputs]),
                    )
                except NotExported as failure:
                    refused.update(_blamed(region, failure))
        if len(refused) == before:
            return [known[region.nodes] for region in regions]


def _blamed(region: Region, failure: NotExported) -> dict[fx.Node, Unsupported]:
    """The nodes that the exporter failed at: those of the operator that it named, or else all of the region."""
    named = {node for node in region.nodes if str(node.target) == failure.target} or set(region.nodes)
    taking = {node for node in region.nodes if set(node.all_input_nodes) & named and not computes(node)}
    return dict.fromkeys((*named, *taking), Unsupported(Reason.COMPILE_FAILED, failure.detail))


def _visible(graph_module: fx.GraphModule, shown: int | None) -> frozenset[str]:
    """Names of the nodes whose layout matters: a caller sees it, by views too, or random numbers come in its order."""
    views, found = last_views(graph_module), set()
    waiting = [each for each in graph_module.graph.output_node().args[0][:shown] if isinstance(each, fx.Node)]
    waiting += [each for node in graph_module.graph.nodes if is_random(node) for each in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        found.add(node.name)
        waiting.extend(node.all_input_nodes if node in views else ())
    return frozenset(found)


def _weighs(region: Region, is_weight: IsWeight) -> Callable[[int, Any], bool]:
    """Which inputs of a region may be constants: those of the whole graph that are weights."""
    places = {place for place, node in enumerate(region.inputs) if node.op in ("placeholder", "get_attr")}
    return lambda place, value: place in places and is_weight(value)


def lost(program: Program) -> Iterator[Left]:
    """The operators of a region that PyTorch runs, since no session could be made of it."""
    if program.failure is not None:
        yield from _left(program.region.nodes, dict.fromkeys(program.region.nodes, program.failure))


def _left(nodes: Sequence[fx.Node], refused: Mapping[fx.Node, Unsupported]) -> Iterator[Left]:
    for node in nodes:
        if node in refused and computes(node):
            line = line_of(node.meta.get("stack_trace"))
            yield Left(operator=str(node.target), refusal=refused[node], line=line)


def _runner(
    graph_module: fx.GraphModule, nodes: Sequence[fx.Node], regions: Sequence[Region], programs: Sequence[Program]
) -> Boxed:
    inputs = graph_module.graph.find_nodes(op="placeholder")
    if len(regions) == 1 and set(regions[0].nodes) == set(nodes) and set(regions[0].inputs) <= set(inputs):
        return _direct(inputs, regions[0], programs[0], graph_module.graph.output_node().args[0])
    call_regions(graph_module, regions, programs)
    return _boxed(partial(_spread, graph_module.forward))


def _direct(inputs: Sequence[fx.Node], region: Region, program: Program, results: Sequence[Any]) -> Boxed:
    """A graph that is one region: without the code that PyTorch writes for graphs."""
    reads = [inputs.index(node) for node in region.inputs]
    places = {node: place for place, node in enumerate((*region.outputs, *inputs))}
    gives = [places[each] if isinstance(each, fx.Node) else None for each in results]
    own = gives == list(range(len(region.outputs)))

    def run(given: list[Any]) -> list[Any]:
        made = program(*[given[place] for place in reads])
        if own:
            given.clear()
            return list(made)
        all_values = (*made, *given)
        given.clear()
        return [None if place is None else all_values[place] for place in gives]

    return _boxed(run)


def _spread(function: Callable[..., Any], given: list[Any]) -> Any:
    arguments = tuple(given)
    given.clear()
    return function(*arguments)


def _boxed(function: Callable[[list[Any]], Any]) -> Boxed:
    function._boxed_call = True  # type: ignore[attr-defined]  # how PyTorch is told
    return function
