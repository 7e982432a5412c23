"""A region of which no session can be made, cut into smaller ones until those are found that cannot.

Which operator is at fault is seldom said. So a region is halved, each half is a program of its own, and one that fails
is halved again; what is left is single operators, which PyTorch runs. All the programs that come of one region share a
count of failures: where everything fails, for a reason that has nothing to do with operators, there is soon an end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from nnadapter.torch.cutting import Region, call_regions, region_of
from nnadapter.torch_models.operators import is_size


@dataclass(slots=True)
class Failures:
    """How many more programs of one region may fail before what fails is left whole."""

    left: int

    def take(self) -> bool:
        """Count one; False if there are none left."""
        self.left -= 1
        return self.left >= 0


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
