"""Who reads the results of a graph: a person, another graph of ours, or PyTorch, which writes them into an input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from nnadapter.torch.cutting import Region
from nnadapter.torch_models.operators import is_size
from nnadapter.torch_models.views import is_view, last_views


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """By the names of nodes, which parts of a graph have as well."""

    visible: Collection[str] = ()
    """Those that somebody else than sessions of ours may look at, and see how they lie in memory."""
    read: Collection[str] = ()
    """Those that operators read which stay in PyTorch; of the graph's inputs also those that are results."""
    returning: Collection[str] = ()
    """Those that may be fed to another graph: gradients."""
    lying: Collection[str] = ()
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
    lying: frozenset[int]
    """Those that come as tensors on a device, though a person has them."""
    written: Mapping[int, int]
    """Which input each of these is written into, by its place among the region's inputs."""

    @property
    def staying(self) -> frozenset[int]:
        """Those that may stay on a device."""
        return self.hidden | self.returning | self.lying | self.written.keys()


def computed_results(graph_module: fx.GraphModule, kind: str, shown: int | None) -> frozenset[fx.Node]:
    """Return the results that sessions compute even if they are views, as nobody sees whose memory they share.

    1. Those that the backward graph alone gets: behind the first `shown`.
    2. Gradients that are all of what they look at.
    """
    results = [result for result in graph_module.graph.output_node().args[0] if isinstance(result, fx.Node)]
    if kind == "backward":
        return frozenset(result for result in results if is_view(result) and _is_whole(result))
    visible_results = set(graph_module.graph.output_node().args[0][:shown])
    return frozenset(result for result in results if result not in visible_results)


def _is_whole(view: fx.Node) -> bool:
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
    outside_nodes, passed = _apart(graph_module, regions), graph_module.graph.output_node().all_input_nodes
    given = _seen(results[:shown], last_views(graph_module, computed))
    return Uses(
        visible=given | _names_read(node for node in outside_nodes if not is_size(node)),
        read=_names_read(outside_nodes)
        | {returned_node.name for returned_node in passed if returned_node.op == "placeholder"},
        returning=given if kind == "backward" else (),
        lying={results[place].name for place in lying if isinstance(results[place], fx.Node)},
        written={result.name: given.name for result, given in pairs if isinstance(result, fx.Node)},
    )


def _apart(graph_module: fx.GraphModule, regions: Sequence[Region]) -> list[fx.Node]:
    """The nodes that PyTorch runs."""
    inside = {node for region in regions for node in region.nodes}
    return [node for node in graph_module.graph.nodes if node.op == "call_function" and node not in inside]


def _names_read(nodes: Iterable[fx.Node]) -> frozenset[str]:
    return frozenset(input_node.name for node in nodes for input_node in node.all_input_nodes)


def _seen(results: Sequence[object], views: Collection[fx.Node]) -> frozenset[str]:
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
        lying=frozenset(place for place, name in enumerate(names) if name in uses.lying) - read,
        written=written,
    )
