"""Placement of graphs that repeat themselves: solved for few repeats, spread over all, priced as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from partition.by_cost.batches import Rows
from partition.by_cost.blocks import Blocks
from partition.by_cost.folding import FoldedGraph, fold
from partition.by_cost.origin import Origin, OriginKind
from partition.by_cost.penalties import penalized, placement_costs
from partition.by_cost.pricing import Prices
from partition.by_cost.search import PlacementCosts, improve
from partition.by_cost.several_devices import bound_on_several, moved_from, moved_on_several, searching_cost
from partition.by_cost.two_devices import CUT_WORK, Named, PlacedOnTwo, bounding_cuts, cheapest, place_on_two
from partition.graph import Graph
from partition.topology import Seconds

_SMALLER = 2
"""A short graph has at most one in so many atoms of the long one."""
_SEARCH_WORK = 6_000_000
"""Atoms of the long graph that the search may touch."""
_PAIR_WORK = 75_000
"""Atoms that cuts between two of several devices may touch."""


def place_repeats(
    graph: Graph, prices: Prices, starts: tuple[Named, ...], blocks: Sequence[Blocks]
) -> PlacedOnTwo | None:
    """Return placements and a lower bound of every placement's cost; None if too little repeats or nothing is found.

    1. Cuts of the whole graph give the bound, and placements: they know what many repeats together are worth.
    2. The graph is folded (`partition.by_cost.folding`) and the short one is placed as usual. Placements are spread.
    3. The cheapest three on two devices are searched: atoms of the short graph move, and with each all atoms that it
       stands for; the price is that of the whole graph. Placements of the whole graph take part, folded by majority.

    Args:
        graph: the graph; it has an atom.
        prices: of two or more devices, columns in the order of the graph's topology.
        starts: further placements to begin with.
        blocks: of the graph.
    """
    folded = fold(graph, prices, blocks)
    if folded is None or _SMALLER * len(folded.graph.atoms) > len(graph.atoms):
        return None
    return place_folded(graph, prices, starts, folded)


def place_folded(graph: Graph, prices: Prices, starts: tuple[Named, ...], folded: FoldedGraph) -> PlacedOnTwo | None:
    """Do the same for a graph that is folded already, however little shorter that made it."""
    return (_on_two if len(prices.devices) == 2 else _on_several)(graph, prices, starts, folded)


def _on_two(
    graph: Graph, prices: Prices, starts: tuple[Named, ...], folded: FoldedGraph, work: int = CUT_WORK
) -> PlacedOnTwo | None:
    cuts = bounding_cuts(graph, prices, work)
    if cuts is None:
        return None
    initial_placements = (*starts, *cuts.placements)
    gathered = _gathered(folded, initial_placements)
    solution = place_on_two(folded.graph, folded.prices, gathered)
    if solution is None:
        return None
    short = _distinct((*solution.placements, *gathered))
    soft = penalized(graph, prices)
    spread = _spread(folded, short)
    costs = placement_costs(graph, soft, [rows for _, rows in (*spread, *initial_placements)])
    searched = _searched(graph, soft, folded, short, costs[: len(short)])
    named = (*starts, *spread, *cuts.placements, *_spread(folded, tuple(searched)))
    return PlacedOnTwo(named, cuts.bound(costs), folded.repeats)


def _on_several(graph: Graph, prices: Prices, starts: tuple[Named, ...], folded: FoldedGraph) -> PlacedOnTwo | None:
    initial_placements = (*starts, *_pairs(graph, prices, folded))
    short = _distinct(moved_on_several(folded.graph, folded.prices, _gathered(folded, initial_placements)))
    soft = penalized(graph, prices)

    def cost_of(rows: Rows) -> float:
        return searching_cost(graph, soft, folded.spread(rows))

    start = min(short, key=lambda placement: cost_of(placement[1]))
    _, moved = moved_from(folded.graph, folded.prices, start, cost_of, len(graph.atoms))
    together = (Origin(OriginKind.MOVED_ALIKE, base=start[0]), moved)
    named = (*initial_placements, *_spread(folded, _distinct((*short, together))))
    costs = placement_costs(graph, prices, [rows for _, rows in named])
    best = int(costs.argmin())
    bound = bound_on_several(graph, prices, named[best][1], float(costs[best]))
    return None if bound is None else PlacedOnTwo(named, bound, folded.repeats)


def _pairs(graph: Graph, prices: Prices, folded: FoldedGraph) -> Iterator[Named]:
    """The best placements on the host and one other device, where these two take everything."""
    host = prices.devices.index(prices.host) if prices.host in prices.devices else 0
    for other in range(len(prices.devices)):
        rows = [host, other]
        if other != host and np.isfinite(prices.run[rows]).any(axis=0).all():
            of_two = prices.of_rows(rows)
            solution = _on_two(graph, of_two, (), replace(folded, prices=folded.prices.of_rows(rows)), _PAIR_WORK)
            if solution is not None:
                costs = placement_costs(graph, of_two, [placed for _, placed in solution.placements])
                best = np.array(rows, np.int8)[solution.placements[int(costs.argmin())][1]]
                yield Origin(OriginKind.PAIR, of_two.devices), best


def _gathered(folded: FoldedGraph, named: Sequence[Named]) -> tuple[Named, ...]:
    return _distinct([(origin, folded.gathered(rows)) for origin, rows in named])


def _distinct(named: Sequence[Named]) -> tuple[Named, ...]:
    placements: dict[bytes, Named] = {}
    for placement in named:
        placements.setdefault(placement[1].tobytes(), placement)
    return tuple(placements.values())


def _spread(folded: FoldedGraph, named: Sequence[Named]) -> tuple[Named, ...]:
    runs = len(folded.repeats)
    kind = OriginKind.ONE_REPEAT if runs == 1 else OriginKind.ONE_REPEAT_PER_RUN
    solved = (folded.repeats[0] if runs == 1 else runs,)
    return tuple((Origin(kind, solved, origin), folded.spread(rows)) for origin, rows in named)


def _searched(
    graph: Graph, prices: Prices, folded: FoldedGraph, named: Sequence[Named], costs: Seconds
) -> Iterator[Named]:
    movable = np.flatnonzero(np.isfinite(folded.prices.run).all(axis=0))
    graph_costs, work = PlacementCosts(graph, prices, folded.home), _SEARCH_WORK
    for origin, rows in cheapest(named, costs):
        better, work = improve(folded.graph, graph_costs, rows, movable, work)
        yield Origin(OriginKind.MOVED_ALIKE, base=origin), better
