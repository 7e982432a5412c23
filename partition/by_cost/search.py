"""Placement search on two or more devices: minimum cuts, local search with true costs, lower bounds.

A returning value is read on the device that produced it, but by a later segment, so it costs two transfers or
`Prices.resident_read`. A cut cannot charge this cost, as it is not submodular. So half is charged to the producing and
half to the reading atom, and the next cut pays the average charge so far. That improves placements but gives no bound.

Three or more devices: swap moves between pairs of devices, and a Lagrangian bound from one cut per device. Source: Y.
Boykov, O. Veksler, R. Zabih, Fast Approximate Energy Minimization via Graph Cuts, IEEE TPAMI 23 (2001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, combinations

import numpy as np

from partition.by_cost.minimum_cuts import (
    Plans,
    TwoWay,
    along_paths,
    costliest_path,
    everywhere,
    flow_module,
    square,
    two_way,
)
from partition.by_cost.pricing import (
    Flags,
    Indices,
    Origin,
    OriginKind,
    Prices,
    Rows,
    Seconds,
    Topology,
    all_on,
    distinct,
    penalized,
    placement_costs,
    price,
    price_many,
    segment_of_atoms,
    topology_of,
)
from partition.graph import Graph
from partition.plan import Segment, cut, schedule

_AT_ONCE = 1_000_000
_ENUMERATED = 16_384
_TOUCHED = 2_000_000
_REAL = 1 - 1e-12
"""Factor of the cost below which an improvement is real."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementCosts:
    """Costs of placements on two devices, many at once."""

    graph: Graph
    prices: Prices
    representative_atom: Indices | None = None
    """[atoms] Atom of the folded graph for each atom of `graph`; None if placements are not of a folded graph."""

    @property
    def atoms(self) -> int:
        return len(self.graph.atoms)

    @property
    def at_once(self) -> int:
        return max(1, _AT_ONCE // max(1, len(topology_of(self.graph).reader), self.atoms))

    def of(self, rows: Rows) -> Seconds:
        blocks = (rows[:, start : start + self.at_once] for start in range(0, rows.shape[1], self.at_once))
        homes = (block if self.representative_atom is None else block[self.representative_atom] for block in blocks)
        return np.concatenate([price_many(self.graph, self.prices, home_rows) for home_rows in homes])


def enumerable(graph: Graph, movable: Indices) -> bool:
    """Return True if the placements of `movable` atoms are few enough to price all."""
    return (
        len(movable) < 63
        and 2 ** len(movable) * min(len(graph.atoms), _TOUCHED) <= _TOUCHED
        and (2 ** len(movable) <= _ENUMERATED)
    )


def enumerate_placements(graph: Graph, prices: Prices, rows: Rows, movable: Indices) -> Rows:
    """Return the cheapest placement that agrees with `rows` except on `movable` atoms."""
    numbers = np.arange(2 ** len(movable))
    every = np.repeat(rows[:, None], len(numbers), axis=1)
    every[movable] = (numbers >> np.arange(len(movable))[:, None]) & 1
    best: Rows = every[:, int(PlacementCosts(graph, prices).of(every).argmin())]
    return best


def _improve(graph: Graph, costs: PlacementCosts, rows: Rows, movable: Indices, work: int) -> tuple[Rows, int]:
    """Improve a placement by local search; return the placement and the rest of `work`.

    A move changes the device of an atom, two adjacent atoms, a segment, or a connected part of one. The best 1, 2, 4,
    8, ... moves are combined, and the cheapest result is the next placement. Both devices take all `movable` atoms;
    `work` limits the atoms touched.
    """
    free = np.zeros(len(rows), np.bool_)
    free[movable] = True
    cost = float("inf")
    while len(movable) * costs.atoms <= work:
        moves = list(_moves(graph, rows, free))
        cost = cost if np.isfinite(cost) else float(costs.of(rows[:, None])[0])
        if not moves or len(moves) * costs.atoms > work:
            break
        work -= len(moves) * costs.atoms
        move_costs = _priced_moves(costs, rows, moves)
        better = np.argsort(move_costs, kind="stable")[: int((move_costs < cost * _REAL).sum())]
        if not len(better):
            break
        together = _together(rows, [moves[int(move)] for move in better])
        joint_costs = costs.of(together)
        rows, cost = together[:, int(joint_costs.argmin())], float(joint_costs.min())
    return rows, work


def _moves(graph: Graph, rows: Rows, free: Flags) -> Iterator[Indices]:
    yield from np.flatnonzero(free)[:, None]
    producer, reader = topology_of(graph).read_producer, topology_of(graph).reader
    joined = (producer >= 0) & free[producer] & free[reader] & (rows[producer] == rows[reader])
    pairs = np.stack([producer[joined], reader[joined]], axis=1)
    yield from np.unique(pairs, axis=0)
    for part in _parts(graph, rows):
        able = part[free[part]]
        if len(able) > 1:
            yield able


def _parts(graph: Graph, rows: Rows) -> Iterator[Indices]:
    names = ("0", "1")
    segments = cut(graph, [names[row] for row in rows.tolist()], host="0").segments
    yield from (np.array(segment.atoms, np.int64) for segment in segments)
    home = segment_of_atoms(segments, len(rows))
    producer, reader = topology_of(graph).read_producer, topology_of(graph).reader
    inside = (producer >= 0) & (home[producer] == home[reader])
    ones = np.ones(int(inside.sum()), np.int8)
    joined = square(ones, producer[inside], reader[inside], len(rows))
    number, part = flow_module().connected_components(joined, directed=False)
    order = np.argsort(part, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(part, minlength=number))[:-1])
    yield from (piece for piece in pieces if len(piece) < len(segments[home[piece[0]]].atoms))


def _priced_moves(costs: PlacementCosts, rows: Rows, moves: Sequence[Indices]) -> Seconds:
    block_costs = []
    for start in range(0, len(moves), costs.at_once):
        block = moves[start : start + costs.at_once]
        changed = np.repeat(rows[:, None], len(block), axis=1)
        atoms = np.concatenate(block)
        columns = np.repeat(np.arange(len(block)), [len(move) for move in block])
        changed[atoms, columns] = 1 - changed[atoms, columns]
        block_costs.append(costs.of(changed))
    return np.concatenate(block_costs)


def _together(rows: Rows, moves: Sequence[Indices]) -> Rows:
    sizes = [size for size in accumulate([1] * 63, lambda size, _: 2 * size) if size < len(moves)]
    results = []
    for size in [*sizes, len(moves)]:
        changed = rows.copy()
        atoms = np.unique(np.concatenate(moves[:size]))
        changed[atoms] = 1 - rows[atoms]
        results.append(changed)
    return np.stack(results, axis=1)


def charges(graph: Graph, prices: Prices, rows: Rows) -> Seconds:
    """Return costs of values that later segments read on the same device, [2, atoms] seconds."""
    topology = topology_of(graph)
    segments = cut(graph, [prices.devices[row] for row in rows.tolist()], host=prices.host).segments
    home = segment_of_atoms(segments, topology.atoms)
    maker, reader = topology.read_producer, topology.reader
    is_produced = maker >= 0
    leaves = topology.output.copy()
    leaves[topology.read_value[is_produced & (rows[maker] != rows[reader])]] = True
    returns = is_produced & (rows[maker] == rows[reader]) & (home[maker] != home[reader])
    value, maker, reader = topology.read_value[returns], maker[returns], reader[returns]
    row = rows[reader]
    into, out = prices.transfer_in[row, value], prices.transfer_out[row, value]
    if prices.resident_read is not None:
        repeat_seconds = prices.resident_read[row, value]
        into, out = (np.where(np.isfinite(repeat_seconds), repeat_seconds, seconds) for seconds in (into, out))
    _, group, sharing = np.unique(value * len(segments) + home[reader], return_inverse=True, return_counts=True)
    leaving = np.where(leaves[value], 0.0, out / np.bincount(value)[value])
    half = (into / sharing[group] + leaving) / 2
    atom_charges = np.zeros((2, topology.atoms))
    np.add.at(atom_charges, (row, maker), half)
    np.add.at(atom_charges, (row, reader), half)
    return atom_charges


_SHARES = (0.25, 0.5, 1.0)
_ROUNDS = 16
CUT_WORK = 300_000
_SEARCH_WORK = 12_000_000
_STARTS = 3
_TIGHT = 1 + 1e-9
"""Factor by which a bound must rise to count as changed."""

Named = tuple[Origin, Rows]
"""Placement with its origin."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOnTwo:
    """Placements with a lower bound."""

    placements: tuple[Named, ...]
    bound: float
    repeats: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Placements on two devices by minimum cuts."""

    placements: tuple[Named, ...]
    """The cut without launches, then cuts along paths, then the two single-device placements."""
    plain: TwoWay
    plans: Plans
    mixed: float
    """Seconds that no placement on both devices can beat."""

    def bound(self, costs: Seconds) -> float:
        return min(self.mixed, float(costs[-2:].min()))


def bounding_cuts(graph: Graph, prices: Prices, work: int = CUT_WORK) -> Cuts | None:
    """Return the cuts that bound two-device placements; None if no placement exists.

    A placement on both devices costs at least the cut without launches plus both launches, and at least every cut along
    paths. A single-device placement has one segment and a known price.
    """
    topology, plans = topology_of(graph), Plans()
    plain = two_way(topology, prices, (0, 1), plans=plans)
    if plain is None:
        return None
    rounds = _rounds(graph, work)
    paths = list(_along_paths(graph, prices, plain, plans, rounds)) if prices.launch.any() else []
    cuts = [(Origin(OriginKind.CUT_ALONG_PATHS, (at,)), cut.rows) for at, cut in enumerate(paths, 1)]
    single_placements = [
        (all_on(name), np.full(topology.atoms, row, np.int8)) for row, name in enumerate(prices.devices)
    ]
    mixed = max(plain.bound + float(prices.launch.sum()), *(cut.bound for cut in paths), 0.0)
    return Cuts(((Origin(OriginKind.CUT), plain.rows), *cuts, *single_placements), plain, plans, mixed)


def place_on_two(graph: Graph, prices: Prices, starts: Sequence[Named], work: int = CUT_WORK) -> PlacedOnTwo | None:
    """Return placements on two devices and a lower bound; None if no placement exists.

    Cuts without launches and along paths give the bound (`bounding_cuts`). Further placements are cuts with a share of
    a launch on every crossing value, and cuts charged for returning values. Local search improves the cheapest,
    `starts` included.
    """
    cuts = bounding_cuts(graph, prices, work)
    if cuts is None:
        return None
    soft = penalized(graph, prices)
    charged = [*_with_shares(graph, prices, cuts.plans)]
    charged += _with_returns(graph, soft, cuts.plain, cuts.plans, _rounds(graph, work))
    named = (*starts, *charged, *cuts.placements)
    costs = placement_costs(graph, soft, [rows for _, rows in named])
    searched = search_from_cheapest(
        graph, prices, PlacementCosts(graph, soft), named, costs, OriginKind.SEARCH, _SEARCH_WORK
    )
    return PlacedOnTwo((*named, *searched), cuts.bound(costs))


def _rounds(graph: Graph, work: int) -> int:
    return min(_ROUNDS, max(3, work // topology_of(graph).atoms))


def _with_shares(graph: Graph, prices: Prices, plans: Plans) -> Iterator[Named]:
    topology = topology_of(graph)
    for share in _SHARES if prices.launch.any() else ():
        surcharge = everywhere(prices.launch * share, topology.atoms)
        cut = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if cut is not None:
            yield Origin(OriginKind.CUT_WITH_SHARES, (share,)), cut.rows


def _along_paths(graph: Graph, prices: Prices, plain: TwoWay, plans: Plans, rounds: int) -> Iterator[TwoWay]:
    topology = topology_of(graph)
    cut, bound, still = plain, 0.0, 0
    paths = []
    for _ in range(rounds):
        paths.append(costliest_path(graph, cut.rows, prices.launch))
        surcharge = along_paths(paths, prices.launch, topology.atoms)
        following = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if following is None or still > 2:
            return
        cut = following
        still = still + 1 if cut.bound <= bound * _TIGHT else 0
        bound = max(bound, cut.bound)
        yield cut


def _with_returns(graph: Graph, prices: Prices, plain: TwoWay, plans: Plans, rounds: int) -> Iterator[Named]:
    topology = topology_of(graph)
    rows, total = plain.rows, np.zeros((2, topology.atoms))
    paths = []
    for at in range(1, rounds + 1):
        charged = charges(graph, prices, rows)
        if at == 1 and not charged.any():
            return
        total += charged
        paths.append(costliest_path(graph, rows, prices.launch))
        surcharge = along_paths(paths, prices.launch, topology.atoms)
        surcharge = replace(surcharge, atom=surcharge.atom + total / at)
        cut = two_way(topology, prices, (0, 1), surcharge=surcharge, plans=plans)
        if cut is None:
            return
        rows = cut.rows
        yield Origin(OriginKind.CUT_WITH_RETURNS, (at,)), rows


def search_from_cheapest(
    graph: Graph,
    prices: Prices,
    costs: PlacementCosts,
    placements: Sequence[Named],
    seconds: Seconds,
    kind: OriginKind,
    work: int,
) -> Iterator[Named]:
    """Yield the cheapest feasible `placements`, which cost `seconds`, improved by local search."""
    movable = np.flatnonzero(np.isfinite(prices.run).all(axis=0))
    feasible = [placements[at] for at in np.argsort(seconds, kind="stable") if np.isfinite(seconds[at])]
    for origin, rows in distinct(feasible)[:_STARTS]:
        better, work = _improve(graph, costs, rows, movable, work)
        yield Origin(kind, base=origin), better


_MOVE_SHARES = (0.0, 0.5)
PAIR_WORK = 75_000
_MOVE_WORK = 300_000
_FLIP_WORK = 40_000
_BOUND_WORK = 600_000
_BOUND_ROUNDS = 40
_EXACT = 256
"""Maximum number of atoms for which the search uses exact segments."""
_MOVE_STARTS = (3, 2)
"""Number of starts to improve: up to `_EXACT` atoms, and above."""


def place_on_several(graph: Graph, prices: Prices, starts: tuple[Named, ...]) -> PlacedOnTwo | None:
    """Return placements on three or more devices and a lower bound; None if no placement exists."""
    placements = moved_on_several(graph, prices, starts)
    best = placements[-1][1]
    bound = bound_on_several(graph, prices, best, searching_cost(graph, penalized(graph, prices), best))
    return None if bound is None else PlacedOnTwo(placements, bound)


def moved_on_several(graph: Graph, prices: Prices, starts: Sequence[Named]) -> tuple[Named, ...]:
    """Return placements on three or more devices; the last one is cheapest by `searching_cost`.

    Swap moves improve the cheapest starts: for each pair of devices, an exact cut divides their atoms again, if the
    true price falls. Then single atoms move.
    """
    cheapest = prices.run.argmin(axis=0).astype(np.int8)

    def solve(of_two: Prices, rows: list[int]) -> PlacedOnTwo | None:
        first = np.isinf(of_two.run[0]).astype(np.int8)
        return place_on_two(graph, of_two, [(Origin(OriginKind.PAIR, of_two.devices), first)], PAIR_WORK)

    named = [*starts, (Origin(OriginKind.CHEAPEST_DEVICES), cheapest), *best_on_pairs(graph, prices, solve)]
    cost_of = partial(searching_cost, graph, penalized(graph, prices))
    costs = [cost_of(rows) for _, rows in named]
    atoms = topology_of(graph).atoms
    chosen = sorted(range(len(named)), key=costs.__getitem__)[: _MOVE_STARTS[atoms > _EXACT]]
    improved = [_improve_by_moves(graph, prices, named[at], cost_of, atoms) for at in chosen]
    (origin, rows), cost = min(improved, key=lambda candidate: candidate[1])
    final = (Origin(OriginKind.ATOMS_MOVED, base=origin), _flipped(prices, rows, cost, cost_of, atoms))
    return (*named, *(candidate for candidate, _ in improved), final)


def moved_from(graph: Graph, prices: Prices, start: Named, cost_of: Callable[[Rows], float], touched: int) -> Named:
    """Improve a placement: first swap atoms between pairs of devices by exact cuts, then move single atoms."""
    (origin, rows), cost = _improve_by_moves(graph, prices, start, cost_of, touched)
    return Origin(OriginKind.ATOMS_MOVED, base=origin), _flipped(prices, rows, cost, cost_of, touched)


def bound_on_several(graph: Graph, prices: Prices, best: Rows, cost: float) -> float | None:
    """Return a lower bound of all placements; None if no placement exists.

    A single-device placement has a known price. Any other costs at least the bound of `_decomposed` without launches
    plus the two cheapest launches, and at least its bound with launches.
    """
    rows = range(len(prices.devices))
    single_device_costs = [searching_cost(graph, prices, np.full(len(best), row, np.int8)) for row in rows]
    plain = _decomposed(graph, replace(prices, launch=np.zeros(len(rows))), best, cost)
    if plain is None:
        return None
    launched = (_decomposed(graph, prices, best, cost) if prices.launch.any() else None) or 0.0
    return min(*single_device_costs, max(plain + float(np.sort(prices.launch)[:2].sum()), launched))


def searching_cost(graph: Graph, prices: Prices, rows: Rows) -> float:
    """Return the seconds of a placement; large graphs are cut greedily, perhaps into too many segments."""
    placement = [prices.devices[row] for row in rows.tolist()]
    if topology_of(graph).atoms <= _EXACT:
        return price(graph, prices, placement)
    turns, _ = schedule(graph.atom_predecessors, placement, work=0)
    return price(graph, prices, placement, [Segment(label, atoms) for label, atoms in turns])


def best_on_pairs(
    graph: Graph, prices: Prices, solve: Callable[[Prices, list[int]], PlacedOnTwo | None]
) -> Iterator[Named]:
    """Yield the cheapest placement on each pair of host and other device; `solve` gets the pair's prices and rows."""
    host = prices.host_row or 0
    for other in range(len(prices.devices)):
        rows = [host, other]
        if other == host or not np.isfinite(prices.run[rows]).any(axis=0).all():
            continue
        of_two = prices.of_rows(rows)
        solution = solve(of_two, rows)
        if solution is not None:
            costs = placement_costs(graph, penalized(graph, of_two), [placed for _, placed in solution.placements])
            yield (
                Origin(OriginKind.PAIR, of_two.devices),
                np.array(rows, np.int8)[solution.placements[int(costs.argmin())][1]],
            )


def _improve_by_moves(
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
    """Return a lower bound of runs, transfers and launches along a path; None if no placement exists.

    Lagrangian decomposition: these costs are a sum of one function per device, of its atoms. Let u(a) be any price for
    an atom's absence from a device. Per device, the minimum of its costs plus u of the absent atoms is a cut. Each atom
    is absent from all but one of k devices, so the sum of the cuts, minus (k - 1) times the sum of u, is a lower bound.
    A subgradient method raises this bound: absence becomes dearer for atoms that no device takes, cheaper for atoms
    that several take.
    """
    topology = topology_of(graph)
    count = len(prices.devices)
    paths = [costliest_path(graph, best, prices.launch)]
    absence_prices = prices.run.min(axis=0)
    bound, pace, plans = 0.0, 1.0, Plans()
    for _ in range(min(_BOUND_ROUNDS, max(5, _BOUND_WORK // (topology.atoms * count)))):
        cuts = [_cheapest_set(topology, prices, row, absence_prices, paths, plans) for row in range(count)]
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


def _cheapest_set(
    topology: Topology, prices: Prices, row: int, absence_prices: Seconds, paths: list[np.ndarray], plans: Plans
) -> TwoWay | None:
    none = np.zeros(len(prices.values))
    launch = np.array([0.0, prices.launch[row]])
    of_one = replace(
        prices,
        devices=("elsewhere", prices.devices[row]),
        run=np.stack([absence_prices, prices.run[row]]),
        transfer_in=np.stack([none, prices.transfer_in[row]]),
        transfer_out=np.stack([none, prices.transfer_out[row]]),
        launch=launch,
        resident_read=None,
    )
    surcharge = along_paths(paths, launch, topology.atoms)
    return two_way(topology, of_one, (0, 1), surcharge=surcharge, plans=plans)
