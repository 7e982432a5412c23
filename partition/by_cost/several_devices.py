"""Three and more devices: moves between pairs of devices, and a lower bound from one cut per device.

Source of the moves: Y. Boykov, O. Veksler, R. Zabih, Fast Approximate Energy Minimization via Graph Cuts, IEEE TPAMI 23
(2001), swap moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from partition.by_cost.batches import Rows
from partition.by_cost.cuts import TwoWay, two_way
from partition.by_cost.minimum_cut import Plans
from partition.by_cost.origin import Origin, OriginKind
from partition.by_cost.paths import along_paths, costliest_path, everywhere
from partition.by_cost.penalties import penalized, placement_costs
from partition.by_cost.pricing import Prices, price
from partition.by_cost.search import _REAL
from partition.by_cost.two_devices import Named, PlacedOnTwo, place_on_two
from partition.graph import Graph
from partition.segments import Segment
from partition.sequences import schedule
from partition.topology import Seconds, Topology, topology_of

_MOVE_SHARES = (0.0, 0.5)
"""Parts of a launch that a move adds to every value that crosses."""
_PAIR_WORK = 75_000
"""Atoms that cuts of one kind may touch for the best placement on two devices."""
_MOVE_WORK = 300_000
"""Atoms that moves may touch from each start; every pair is tried once in any case."""
_FLIP_WORK = 40_000
"""Atoms that flips of one atom may touch, from the best placement."""
_BOUND_WORK = 600_000
"""Atoms that cuts for the bound may touch; five rounds are allowed in any case."""
_BOUND_ROUNDS = 40
_EXACT = 256
"""Atoms up to which the search prices placements with the segments that they get in the end."""
_MOVE_STARTS = (3, 2)
"""Placements that moves start from, of small graphs and of those above `_EXACT`."""


def place_on_several(graph: Graph, prices: Prices, starts: tuple[Named, ...]) -> PlacedOnTwo | None:
    """Return placements on three or more devices and a lower bound; None if there is no placement.

    The placements are those of `moved_on_several`, the bound is that of `bound_on_several`.

    Args:
        graph: the graph; it has an atom.
        prices: of three or more devices, columns in the order of the graph's topology.
        starts: placements to begin with.
    """
    placements = moved_on_several(graph, prices, starts)
    best = placements[-1][1]
    bound = bound_on_several(graph, prices, best, searching_cost(graph, penalized(graph, prices), best))
    return None if bound is None else PlacedOnTwo(placements, bound)


def moved_on_several(graph: Graph, prices: Prices, starts: tuple[Named, ...]) -> tuple[Named, ...]:
    """Return placements on three or more devices, the one that looks cheapest at the end.

    1. Starts: those given, every atom on its cheapest device, and the best placement on the host and one other device.
    2. From each of the cheapest starts: for every pair of devices, one exact cut over the atoms on either, the others
       staying where they are; kept if the true price falls; until no pair helps. Then atoms are moved one by one.

    Args:
        graph: the graph; it has an atom.
        prices: of three or more devices, columns in the order of the graph's topology.
        starts: placements to begin with.
    """
    cheapest = prices.run.argmin(axis=0).astype(np.int8)
    named = [*starts, (Origin(OriginKind.CHEAPEST_DEVICES), cheapest), *_pairs(graph, prices)]
    cost_of = partial(searching_cost, graph, penalized(graph, prices))
    costs = [cost_of(rows) for _, rows in named]
    atoms = topology_of(graph).atoms
    chosen = sorted(range(len(named)), key=costs.__getitem__)[: _MOVE_STARTS[atoms > _EXACT]]
    improved = [_moved(graph, prices, named[at], cost_of, atoms) for at in chosen]
    (origin, rows), cost = min(improved, key=lambda candidate: candidate[1])
    final = (Origin(OriginKind.ATOMS_MOVED, base=origin), _flipped(prices, rows, cost, cost_of, atoms))
    return (*named, *(candidate for candidate, _ in improved), final)


def moved_from(graph: Graph, prices: Prices, start: Named, cost_of: Callable[[Rows], float], touched: int) -> Named:
    """Return a placement after moves between pairs of devices and of single atoms, those that `cost_of` finds cheaper.

    Args:
        graph: the graph; it has an atom.
        prices: of three or more devices, columns in the order of the graph's topology.
        start: the placement to begin with.
        cost_of: seconds that a placement takes.
        touched: atoms that `cost_of` looks at.
    """
    (origin, rows), cost = _moved(graph, prices, start, cost_of, touched)
    return Origin(OriginKind.ATOMS_MOVED, base=origin), _flipped(prices, rows, cost, cost_of, touched)


def bound_on_several(graph: Graph, prices: Prices, best: Rows, cost: float) -> float | None:
    """Return a lower bound of the cost of every placement; None if there is no placement.

    A placement on one device alone has one segment, and its price is known. Any other one costs at least what
    `_decomposed` says without launches and, as two devices have a segment, the two cheapest launches; and any costs at
    least what `_decomposed` says with launches along a path.

    Args:
        graph: the graph; it has an atom.
        prices: of three or more devices, columns in the order of the graph's topology.
        best: [atoms] a good placement.
        cost: seconds that it takes.
    """
    rows = range(len(prices.devices))
    single_device_costs = [searching_cost(graph, prices, np.full(len(best), row, np.int8)) for row in rows]
    plain = _decomposed(graph, replace(prices, launch=np.zeros(len(rows))), best, cost)
    if plain is None:
        return None
    launched = (_decomposed(graph, prices, best, cost) if prices.launch.any() else None) or 0.0
    return min(*single_device_costs, max(plain + float(np.sort(prices.launch)[:2].sum()), launched))


def searching_cost(graph: Graph, prices: Prices, rows: Rows) -> float:
    """Return the seconds of a placement [atoms], of large graphs with segments found greedily, which are a few more."""
    placement = [prices.devices[row] for row in rows.tolist()]
    if topology_of(graph).atoms <= _EXACT:
        return price(graph, prices, placement)
    turns, _ = schedule(graph.atom_predecessors, placement, work=0)
    return price(graph, prices, placement, [Segment(label, atoms) for label, atoms in turns])


def _pairs(graph: Graph, prices: Prices) -> Iterator[Named]:
    """The placements on the host and one other device, where these two take everything."""
    host = prices.devices.index(prices.host) if prices.host in prices.devices else 0
    for other in range(len(prices.devices)):
        rows = [host, other]
        if other == host or not np.isfinite(prices.run[rows]).any(axis=0).all():
            continue
        of_two = prices.of_rows(rows)
        first = np.isinf(of_two.run[0]).astype(np.int8)
        pair = Origin(OriginKind.PAIR, of_two.devices)
        solution = place_on_two(graph, of_two, ((pair, first),), _PAIR_WORK)
        if solution is not None:
            costs = placement_costs(graph, penalized(graph, of_two), [placed for _, placed in solution.placements])
            yield pair, np.array(rows, np.int8)[solution.placements[int(costs.argmin())][1]]


def _moved(
    graph: Graph, prices: Prices, start: Named, cost_of: Callable[[Rows], float], touched: int
) -> tuple[Named, float]:
    topology = topology_of(graph)
    origin, rows = start
    cost = cost_of(rows)
    pairs = list(combinations(range(len(prices.devices)), 2))
    tries, idle, turn = max(len(pairs), _MOVE_WORK // touched), 0, 0
    while idle < len(pairs) * len(_MOVE_SHARES) and turn < tries:
        share, pair = _MOVE_SHARES[turn // len(pairs) % len(_MOVE_SHARES)], pairs[turn % len(pairs)]
        swapped = _swapped(topology, prices, rows, pair, share)
        turn, idle = turn + 1, idle + 1
        if swapped is None or np.array_equal(swapped, rows):
            continue
        swapped_cost = cost_of(swapped)
        if swapped_cost < cost * _REAL:
            rows, cost, idle = swapped, swapped_cost, 0
    return (Origin(OriginKind.PAIRS_MOVED, base=origin), rows), cost


def _swapped(topology: Topology, prices: Prices, rows: Rows, pair: tuple[int, int], share: float) -> Rows | None:
    active = np.isin(rows, pair)
    surcharge = everywhere(prices.launch[list(pair)] * share, topology.atoms)
    cut = two_way(topology, prices, pair, active, surcharge)
    if cut is None:
        return None
    return np.where(active, np.where(cut.second, pair[1], pair[0]), rows).astype(np.int8)


def _flipped(prices: Prices, rows: Rows, cost: float, cost_of: Callable[[Rows], float], touched: int) -> Rows:
    """Move single atoms to other devices while that helps and the work lasts."""
    work = _FLIP_WORK
    atoms = np.flatnonzero(np.isfinite(prices.run).sum(axis=0) > 1).tolist()
    since, at = 0, 0
    while atoms and since < len(atoms) and work > 0:
        atom = atoms[at % len(atoms)]
        at, since = at + 1, since + 1
        for row in np.flatnonzero(np.isfinite(prices.run[:, atom])).tolist():
            work -= touched
            changed = rows.copy()
            changed[atom] = row
            changed_cost = cost_of(changed) if row != rows[atom] and work > 0 else cost
            if changed_cost < cost * _REAL:
                rows, cost, since = changed, changed_cost, 0
    return rows


def _decomposed(graph: Graph, prices: Prices, best: Rows, cost: float) -> float | None:
    """Return a lower bound of runs, transfers and launches along a path; None if there is no placement.

    That cost of a placement is a sum over devices of what depends on one device alone: which atoms stand on it decides
    what it runs, which values come to it and leave it, and, along a path, how often it is launched. Let u(a) be any
    prices for atoms *not* on a device. Per device, the least of "its own cost, and u for the atoms that are not on it"
    is one cut. Every placement has each atom on all devices but one, so it pays u(a) (k - 1) times in the sum over k
    devices: the sum of the cuts, less (k - 1) times the sum of u, is a lower bound. With u as the cheapest run of every
    atom it is the sum of these at least; a subgradient method raises it: an atom that no device takes gets dearer, one
    that several take gets cheaper.
    """
    topology = topology_of(graph)
    count = len(prices.devices)
    paths = [costliest_path(graph, best.astype(np.int64), prices.launch)]
    absence_prices = prices.run.min(axis=0)
    bound, pace, plans = 0.0, 1.0, Plans()
    for _ in range(min(_BOUND_ROUNDS, max(5, _BOUND_WORK // (topology.atoms * count)))):
        cuts = [_alone(topology, prices, row, absence_prices, paths, plans) for row in range(count)]
        parts = [cut for cut in cuts if cut is not None]
        if len(parts) < count:
            return None
        value = sum(cut.bound for cut in parts) - (count - 1) * float(absence_prices.sum())
        pace = pace if value > bound else pace * 0.7
        bound = max(bound, value)
        slope = 1.0 - np.sum([cut.second for cut in parts], axis=0)
        if not slope.any() or not np.isfinite(cost):
            break
        step = pace * max(cost - value, 0.0) / float((slope**2).sum())
        absence_prices = np.maximum(absence_prices + step * slope, 0.0)
    return bound


def _alone(
    topology: Topology, prices: Prices, row: int, absence_prices: Seconds, paths: list[np.ndarray], plans: Plans
) -> TwoWay | None:
    """The cheapest set of atoms for one device, where an atom elsewhere costs `absence_prices`."""
    none = np.zeros(len(prices.values))
    launch = np.array([0.0, prices.launch[row]])
    of_one = replace(
        prices,
        devices=("elsewhere", prices.devices[row]),
        run=np.stack([absence_prices, prices.run[row]]),
        into=np.stack([none, prices.into[row]]),
        out=np.stack([none, prices.out[row]]),
        launch=launch,
        again=None,
    )
    surcharge = along_paths(paths, launch, topology.atoms)
    return two_way(topology, of_one, (0, 1), surcharge=surcharge, plans=plans)
