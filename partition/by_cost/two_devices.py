"""Two devices: placements worth pricing, from cuts that know more and more of launches, and a lower bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partition.by_cost.batches import Rows
from partition.by_cost.cuts import TwoWay, two_way
from partition.by_cost.minimum_cut import Plans
from partition.by_cost.origin import Origin, OriginKind, all_on
from partition.by_cost.paths import along_paths, costliest_path, everywhere
from partition.by_cost.penalties import penalized, placement_costs
from partition.by_cost.pricing import Prices
from partition.by_cost.returns import charges
from partition.by_cost.search import PlacementCosts, improve
from partition.graph import Graph
from partition.topology import Seconds, topology_of

_SHARES = (0.25, 0.5, 1.0)
"""Parts of a launch that are added to every value that crosses."""
_ROUNDS = 16
"""Cuts along paths at most, and as many that know what returns."""
CUT_WORK = 300_000
"""Atoms that cuts of one kind may touch."""
_SEARCH_WORK = 12_000_000
"""Atoms that the search may touch."""
_STARTS = 3
"""Placements that the search starts from at most."""
_TIGHT = 1 + 1e-9
"""How much a bound may rise and still count as the same one."""

Named = tuple[Origin, Rows]
"""What found a placement, and for every atom the row of its device."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOnTwo:
    """What placement on some devices found out."""

    placements: tuple[Named, ...]
    bound: float
    """Seconds: no placement costs less."""
    repeats: tuple[int, ...] = ()
    """Per run of repeats of which a few were solved for all, how many they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Placements on two devices that give a lower bound."""

    placements: tuple[Named, ...]
    """Of one cut without launches, of cuts along paths, and last everything on one device, and on the other."""
    plain: TwoWay
    """The cut without launches."""
    plans: Plans
    """What is known of cuts of the graph."""
    mixed: float
    """Seconds: no placement that has atoms on both devices costs less."""

    def bound(self, costs: Seconds) -> float:
        """Return seconds that no placement costs less than, from what `placements` cost."""
        return min(self.mixed, float(costs[-2:].min()))


def bounding_cuts(graph: Graph, prices: Prices, work: int = CUT_WORK) -> Cuts | None:
    """Return a cut without launches and cuts along paths (`partition.by_cost.paths`); None if there is no placement.

    A placement on one device alone has one segment and its price is known. Any other one has a segment on both devices
    at least, and none costs less than the cut without launches; so it costs at least that cut and a launch on both. And
    every placement costs at least what a cut along paths says. So no placement costs less than the least of: everything
    on one device, and on the other, and the larger of the plain cut with two launches and of all cuts along paths.

    Args:
        graph: the graph; it has an atom.
        prices: of two devices, columns in the order of the graph's topology.
        work: atoms that cuts may touch; three cuts are allowed in any case.
    """
    topology, plans = topology_of(graph), Plans()
    plain = two_way(topology, prices, (0, 1), plans=plans)
    if plain is None:
        return None
    rounds = _rounds(graph, work)
    paths = list(_along_paths(graph, prices, plain, plans, rounds)) if prices.launch.any() else []
    cuts = [(Origin(OriginKind.CUT_ALONG_PATHS, (at,)), _rows(cut)) for at, cut in enumerate(paths, 1)]
    single_placements = [
        (all_on(name), np.full(topology.atoms, row, np.int8)) for row, name in enumerate(prices.devices)
    ]
    mixed = max(plain.bound + float(prices.launch.sum()), *(cut.bound for cut in paths), 0.0)
    return Cuts(((Origin(OriginKind.CUT), _rows(plain)), *cuts, *single_placements), plain, plans, mixed)


def place_on_two(graph: Graph, prices: Prices, starts: tuple[Named, ...], work: int = CUT_WORK) -> PlacedOnTwo | None:
    """Return placements on two devices and a lower bound of every placement's cost; None if there is no placement.

    1. One cut without launches, and cuts along paths, each with the costliest path of the one before it as one more
       path: `bounding_cuts`. They give the bound.
    2. Cuts with a part of a launch added to every value that crosses.
    3. Cuts along paths, charged with what values cost that come back to their device (`partition.by_cost.returns`).
    4. The cheapest three of all these placements and `starts`, improved by search with true prices.

    Args:
        graph: the graph; it has an atom.
        prices: of two devices, columns in the order of the graph's topology.
        starts: further placements to begin with.
        work: atoms that cuts of one kind may touch; three cuts are allowed in any case.
    """
    cuts = bounding_cuts(graph, prices, work)
    if cuts is None:
        return None
    soft = penalized(graph, prices)
    charged = [*_with_shares(graph, prices, cuts.plans)]
    charged += _with_returns(graph, soft, cuts.plain, cuts.plans, _rounds(graph, work))
    named = (*starts, *charged, *cuts.placements)
    costs = placement_costs(graph, soft, [rows for _, rows in named])
    return PlacedOnTwo((*named, *_searched(graph, soft, named, costs)), cuts.bound(costs))


def _rounds(graph: Graph, work: int) -> int:
    return min(_ROUNDS, max(3, work // topology_of(graph).atoms))


def _with_shares(graph: Graph, prices: Prices, plans: Plans) -> Iterator[Named]:
    """Cuts with a part of a launch on every value that crosses."""
    topology = topology_of(graph)
    for share in _SHARES if prices.launch.any() else ():
        surcharge = everywhere(prices.launch * share, topology.atoms)
        cut = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if cut is not None:
            yield Origin(OriginKind.CUT_WITH_SHARES, (share,)), _rows(cut)


def _rows(cut: TwoWay) -> Rows:
    return cut.second.astype(np.int8)


def _along_paths(graph: Graph, prices: Prices, plain: TwoWay, plans: Plans, rounds: int) -> Iterator[TwoWay]:
    """Cuts along more and more paths, until the bound no longer rises."""
    topology = topology_of(graph)
    cut, bound, still = plain, 0.0, 0
    paths = []
    for _ in range(rounds):
        paths.append(costliest_path(graph, cut.second.astype(np.int64), prices.launch))
        surcharge = along_paths(paths, prices.launch, topology.atoms)
        following = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if following is None or still > 2:
            return
        cut = following
        still = still + 1 if cut.bound <= bound * _TIGHT else 0
        bound = max(bound, cut.bound)
        yield cut


def _with_returns(graph: Graph, prices: Prices, plain: TwoWay, plans: Plans, rounds: int) -> Iterator[Named]:
    """Cuts along more and more paths that pay on average what returning values cost the placements so far."""
    topology = topology_of(graph)
    rows, total = _rows(plain), np.zeros((2, topology.atoms))
    paths = []
    for at in range(1, rounds + 1):
        wide = rows.astype(np.int64)
        charged = charges(graph, prices, wide)
        if at == 1 and not charged.any():
            return
        total += charged
        paths.append(costliest_path(graph, wide, prices.launch))
        surcharge = along_paths(paths, prices.launch, topology.atoms)
        surcharge = replace(surcharge, atom=surcharge.atom + total / at)
        cut = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if cut is None:
            return
        rows = _rows(cut)
        yield Origin(OriginKind.CUT_WITH_RETURNS, (at,)), rows


def _searched(graph: Graph, prices: Prices, named: tuple[Named, ...], costs: Seconds) -> Iterator[Named]:
    movable = np.flatnonzero(np.isfinite(prices.run).all(axis=0))
    work = _SEARCH_WORK
    for origin, rows in cheapest(named, costs):
        better, work = improve(graph, PlacementCosts(graph, prices), rows, movable, work)
        yield Origin(OriginKind.SEARCH, base=origin), better


def cheapest(named: Sequence[Named], costs: Seconds) -> list[Named]:
    """Return the cheapest of distinct placements, those that can run, by what they cost [placements]."""
    placements: dict[bytes, Named] = {}
    for at in np.argsort(costs, kind="stable").tolist():
        if np.isfinite(costs[at]) and len(placements) < _STARTS:
            placements.setdefault(named[at][1].tobytes(), named[at])
    return list(placements.values())
