"""One graph of AOTAutograd's, compiled: regions are sessions, the rest runs in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from nnadapter.torch.cutting import Region, call_regions, readers, regions_of, working
from nnadapter.torch.exporting import ExportFailure, export
from nnadapter.torch.parts import halved
from nnadapter.torch.program import Program
from nnadapter.torch.resident import Resident
from nnadapter.torch.settings import Settings
from nnadapter.torch.sizes import ask_inputs
from nnadapter.torch.sources import line_of
from nnadapter.torch.staying import owns_memory
from nnadapter.torch.uses import computed_results, uses_of
from nnadapter.torch_models.layouts import lying_as
from nnadapter.torch_models.operators import computes, name_of, refusal
from nnadapter.torch_models.views import part_views
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
    graph_module: fx.GraphModule,
    kind: str,
    settings: Settings,
    is_weight: IsWeight,
    shown: int | None = None,
    written: Sequence[int] = (),
    lying: Collection[int] = (),
) -> tuple[Graph, Boxed]:
    """Return a graph in ATen compiled: what can go to sessions does, and what cannot stays, with the reason.

    Args:
        graph_module: functional, as AOTAutograd makes it; it is changed.
        kind: `inference`, `forward` or `backward`.
        settings: what sessions are made with.
        is_weight: whether a tensor that the graph is called with may be a constant.
        shown: how many of its results, the first ones, are seen by others than the backward graph; all if None.
        written: which of its inputs each call changes, as the step of an optimizer does: they are no constants. What
            they become are the first of its results, in this order.
        lying: which of its results lie on a device, though a person has them.
    """
    ask_inputs(graph_module)
    computed = computed_results(graph_module, kind, shown) if owns_memory(settings) else frozenset()
    refused = {node: reason for node in _called(graph_module) if (reason := refusal(node)) is not None}
    exported = _exported(graph_module, refused, computed)
    nodes, work = _called(graph_module), working(graph_module)
    regions = [region for region, _ in exported]
    uses = uses_of(graph_module, kind, shown, written, computed, regions, lying)
    inputs = graph_module.graph.find_nodes(op="placeholder")
    steady = {node for place, node in enumerate(inputs) if place not in written}
    programs = [
        Program(region, model, settings, _weighs(region, steady, is_weight), uses) for region, model in exported
    ]
    graph = Graph(
        kind=kind,
        operators=len(work),
        delegated=sum(len(region.working) for region in regions),
        programs=tuple(programs),
        left=tuple(_left([node for node in nodes if node in work], refused)),
    )
    run = _runner(graph_module, nodes, regions, programs)
    saved_inputs = [(place, node) for place, node in enumerate(inputs) if node.name in uses.read and kind == "backward"]
    lays = {place: lying_as(node.meta.get("val")) for place, node in saved_inputs}
    if not owns_memory(settings):
        lays = {place: lay for place, lay in lays.items() if lay is not None}
    return graph, _boxed(partial(_run_reading, run, lays) if lays else run)


def _called(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def _exported(
    graph_module: fx.GraphModule, refused: dict[fx.Node, Unsupported], computed: Collection[fx.Node]
) -> list[tuple[Region, onnx.ModelProto]]:
    """Regions with their models. What the exporter fails at is added to `refused`, and regions are made again."""
    exports: dict[tuple[fx.Node, ...], tuple[Region, onnx.ModelProto]] = {}
    while True:
        part_views(graph_module, computed, readers(refused))
        regions = regions_of(graph_module, refused, computed)
        refused_count = len(refused)
        for region in regions:
            if region.nodes not in exports:
                try:
                    exports[region.nodes] = (region, export(region.module))
                except ExportFailure as failure:
                    refused.update(_blamed(region, failure))
        if len(refused) == refused_count:
            return [exports[region.nodes] for region in regions]


def _blamed(region: Region, failure: ExportFailure) -> dict[fx.Node, Unsupported]:
    """The nodes that the exporter failed at: those of the operator that it named, or else those found by halving."""
    named = {node for node in region.nodes if str(node.target) == failure.target}
    if not named and len(region.working) > 1:
        reasons = {node: reason for half in halved(region) for node, reason in _failing(half).items()}
        if reasons:
            return reasons
    named = named or set(region.nodes)
    taking = {node for node in region.nodes if set(node.all_input_nodes) & named and not computes(node)}
    return dict.fromkeys((*named, *taking), Unsupported(Reason.COMPILE_FAILED, failure.detail))


def _failing(region: Region) -> dict[fx.Node, Unsupported]:
    try:
        export(region.module)
    except ExportFailure as failure:
        return _blamed(region, failure)
    return {}


def _weighs(region: Region, steady: Collection[fx.Node], is_weight: IsWeight) -> Callable[[int, Any], bool]:
    """Which inputs of a region may be constants: those of the whole graph that are weights, and not written to."""
    places = {place for place, node in enumerate(region.inputs) if node in steady or node.op == "get_attr"}
    return lambda place, value: place in places and is_weight(value)


def lost(program: Program) -> Iterator[Left]:
    """The operators of a region that PyTorch runs, since no session could be made of it, or its session failed."""
    reason = program.repeated if program.failure is None else program.failure
    if reason is not None:
        yield from _left(program.region.working, dict.fromkeys(program.region.working, reason))


def _left(nodes: Sequence[fx.Node], refused: Mapping[fx.Node, Unsupported]) -> Iterator[Left]:
    for node in nodes:
        if node in refused:
            line = line_of(node.meta.get("stack_trace"))
            yield Left(operator=name_of(node), refusal=refused[node], line=line)


def _runner(
    graph_module: fx.GraphModule, nodes: Sequence[fx.Node], regions: Sequence[Region], programs: Sequence[Program]
) -> Boxed:
    """What runs a graph, given tensors."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    if len(regions) == 1 and set(regions[0].nodes) == set(nodes) and set(regions[0].inputs) <= set(inputs):
        return _direct(inputs, regions[0], programs[0], graph_module.graph.output_node().args[0])
    call_regions(graph_module, regions, programs)
    return partial(_spread, graph_module.forward)


def _direct(inputs: Sequence[fx.Node], region: Region, program: Program, results: Sequence[Any]) -> Boxed:
    """A graph that is one region: without the code that PyTorch writes for graphs."""
    reads = [inputs.index(node) for node in region.inputs]
    places = {node: place for place, node in enumerate((*region.outputs, *inputs))}
    gives = [places[result] if isinstance(result, fx.Node) else None for result in results]
    is_identity = gives == list(range(len(region.outputs)))

    def run(args: list[Any]) -> list[Any]:
        outputs = program(*[args[place] for place in reads])
        if is_identity:
            args.clear()
            return list(outputs)
        all_values = (*outputs, *args)
        args.clear()
        return [None if place is None else all_values[place] for place in gives]

    return run


def _spread(function: Callable[..., Any], args: list[Any]) -> Any:
    arguments = tuple(args)
    args.clear()
    return function(*arguments)


def _run_reading(function: Boxed, lays: Mapping[int, Callable[[Any], Any] | None], args: list[Any]) -> Any:
    """Run a backward graph; before, what was kept for it at places in `lays` comes to the host, and is laid out."""
    for place, lay in lays.items():
        is_kept = type(args[place]) is Resident and not isinstance(args[place], torch.nn.Parameter)
        value = args[place].plain() if is_kept else args[place]
        args[place] = value if lay is None else lay(value)
    return function(args)


def _boxed(function: Boxed) -> Boxed:
    function._boxed_call = True  # type: ignore[attr-defined]  # how PyTorch is told
    return function
