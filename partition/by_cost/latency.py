"""Placement by cost: shortest runs (latency), with a lower bound, or balanced devices (throughput)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations, product
from math import prod
from operator import itemgetter

import numpy as np

from partition.by_cost import search
from partition.by_cost.minimum_cuts import flow_module
from partition.by_cost.pricing import (
    Flags,
    Indices,
    Origin,
    OriginKind,
    Prices,
    Rows,
    Seconds,
    aligned,
    all_on,
    device_seconds,
    distinct,
    placement_costs,
    topology_of,
)
from partition.by_cost.repeats import Blocks, place_repeats, uniform_placements
from partition.graph import Graph, GraphError
from partition.plan import check_all_placeable, listed

_MAX_CANDIDATES = 8
_ROUNDING = 1 - 1e-12
_ALIKE = Origin(OriginKind.REPEATS_ALIKE)

Priced = tuple[float, Rows]


class BoundKind(StrEnum):
    """Method that found a lower bound."""

    ENUMERATION = "enumeration"
    CUT = "cut"
    """Minimum cut that includes launches along paths."""
    DECOMPOSITION = "decomposition"
    """Lagrangian decomposition into a minimum cut per device, for three or more."""
    ONE_DEVICE = "one device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Placement with its cost and origin."""

    origin: Origin
    placement: tuple[str, ...]
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestPlacement:
    """Cheapest placement found, with a lower bound."""

    placement: tuple[str, ...]
    cost: float
    bound: float
    bound_kind: BoundKind
    candidates: tuple[Candidate, ...]
    """Distinct placements, cheapest first. Feasible baselines are included, and retain their origins."""
    repeats: tuple[int, ...] = ()

    @property
    def gap(self) -> float:
        """Excess of the cost over the lower bound, as a fraction."""
        if self.cost <= self.bound:
            return 0.0
        return self.cost / self.bound - 1 if self.bound > 0 else float("inf")


def place_by_latency(
    graph: Graph, prices: Prices, *, blocks: Sequence[Blocks] = (), enumerate_few: bool = True
) -> CheapestPlacement:
    """Return the cheapest placement found, a lower bound of all placements, and other candidates.

    If few placements exist, all are priced, unless `enumerate_few` is False; otherwise see `place_on_two` and
    `place_on_several`. A repetitive graph is solved for one repeat of each of its `blocks` (`find_blocks`). Among equal
    costs, placements that treat repeats equally are preferred. Columns of `prices` are in any order. Deterministic and
    linear in the graph.

    Raises:
        GraphError: no device takes some atom, values that cannot cross leave no placement, prices are of another graph,
            or scipy is not installed.
    """
    flow_module()
    ordered = aligned(graph, prices)
    unplaceable = np.flatnonzero(np.isinf(ordered.run).all(axis=0))
    check_all_placeable(graph, ordered.devices, unplaceable.tolist())
    if not graph.atoms:
        return CheapestPlacement(placement=(), cost=0.0, bound=0.0, bound_kind=BoundKind.ONE_DEVICE, candidates=())
    useful = _useful(ordered)
    starts = _baselines(useful)
    solution, kind = _solve(graph, useful, starts, blocks, enumerate_few)
    candidates = _candidates(graph, useful, solution.placements, len(starts), blocks) if solution else ()
    if solution is None or not candidates:
        raise GraphError(_no_way(ordered))
    best = candidates[0]
    bound = best.cost if solution.bound >= best.cost * _ROUNDING else solution.bound * _ROUNDING
    return CheapestPlacement(
        placement=best.placement,
        cost=best.cost,
        bound=bound,
        bound_kind=kind,
        candidates=candidates,
        repeats=solution.repeats,
    )


def _useful(prices: Prices) -> Prices:
    rows = np.flatnonzero(np.isfinite(prices.run).any(axis=1))
    return prices if len(rows) == len(prices.devices) else prices.of_rows(rows.tolist())


def _baselines(prices: Prices) -> tuple[search.Named, ...]:
    takes = np.isfinite(prices.run)
    host = prices.host_row
    order = np.array(sorted(range(len(prices.devices)), key=lambda row: row == host))
    supported = order[takes[order].argmax(axis=0)].astype(np.int8)
    named = [(Origin(OriginKind.EVERYTHING_SUPPORTED), supported)]
    if host is not None and takes[host].all():
        named.insert(0, (all_on(prices.host), np.full(takes.shape[1], host, np.int8)))
    return tuple(named)


def _solve(
    graph: Graph, prices: Prices, starts: tuple[search.Named, ...], blocks: Sequence[Blocks], enumerate_few: bool
) -> tuple[search.PlacedOnTwo | None, BoundKind]:
    if len(prices.devices) == 1:
        return search.PlacedOnTwo(starts, float("inf")), BoundKind.ONE_DEVICE
    if len(prices.devices) > 2:
        solution = place_repeats(graph, prices, starts, blocks) or search.place_on_several(graph, prices, starts)
        return solution, BoundKind.DECOMPOSITION
    movable = np.flatnonzero(np.isfinite(prices.run).all(axis=0))
    if not enumerate_few or not search.enumerable(graph, movable):
        return place_repeats(graph, prices, starts, blocks) or search.place_on_two(graph, prices, starts), BoundKind.CUT
    best = search.enumerate_placements(graph, prices, starts[-1][1], movable)
    return search.PlacedOnTwo((*starts, (Origin(OriginKind.ENUMERATION), best)), float("inf")), BoundKind.ENUMERATION


def _candidates(
    graph: Graph, prices: Prices, named: tuple[search.Named, ...], baselines: int, blocks: Sequence[Blocks]
) -> tuple[Candidate, ...]:
    origins = {rows.tobytes(): origin for origin, rows in reversed(named)}
    priced = _priced(graph, prices, named)
    if priced and blocks:
        with_equal_repeats = _with_equal_repeats(graph, prices, priced[0], blocks)
        priced = distinct(sorted([*with_equal_repeats, *priced], key=itemgetter(0)))
    always = {rows.tobytes() for _, rows in named[:baselines]}
    selection = [
        (cost, rows) for at, (cost, rows) in enumerate(priced) if at < _MAX_CANDIDATES or rows.tobytes() in always
    ]
    return tuple(
        Candidate(
            origin=origins.get(rows.tobytes(), _ALIKE),
            placement=tuple(prices.devices[row] for row in rows.tolist()),
            cost=cost,
        )
        for cost, rows in selection
    )


def _priced(graph: Graph, prices: Prices, named: Sequence[search.Named]) -> list[Priced]:
    different = [rows for _, rows in distinct(reversed(named))][::-1]
    priced = zip(placement_costs(graph, prices, different).tolist(), different, strict=True)
    return sorted((entry for entry in priced if np.isfinite(entry[0])), key=itemgetter(0))


def _with_equal_repeats(graph: Graph, prices: Prices, best: Priced, blocks: Sequence[Blocks]) -> list[Priced]:
    cost, rows = best
    takes = np.isfinite(prices.run)
    atoms = np.arange(len(rows))
    able = [
        (_ALIKE, placement) for placement in uniform_placements(graph, rows, blocks) if takes[placement, atoms].all()
    ]
    priced_placements = _priced(graph, prices, able) if able else []
    return [(min(seconds, cost), placement) for seconds, placement in priced_placements if seconds * _ROUNDING <= cost]


def _no_way(prices: Prices) -> str:
    stuck = np.flatnonzero(np.isinf(prices.transfer_in).any(axis=0) | np.isinf(prices.transfer_out).any(axis=0))
    values = listed([repr(prices.values[at]) for at in stuck])
    return (
        f"no feasible placement on {list(prices.devices)} was found: the values {values} cannot cross between "
        "devices; end the list with a device that takes everything"
    )


_ENUMERATED = 512
_ORDERS = 6
_LOADS = 24
_STARTS = 3
_WORK = 200_000
_ROUNDS = 200
_REAL = 1 - 1e-12
"""Factor of the cost below which an improvement is real."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedPlacement:
    """Placement found with the smallest load of the busiest device."""

    placement: tuple[str, ...]
    loads: dict[str, float]
    """Seconds per input, by device."""
    busiest: tuple[str, ...]
    """Device with the largest load, or all processor-sharing devices if their total load is the largest."""
    stage: float
    """Load of `busiest`."""
    bound: float


def place_by_throughput(
    graph: Graph,
    prices: Prices,
    *,
    sharing: Iterable[str] = (),
    starts: Iterable[Sequence[str]] = (),
    enumerate_few: bool = True,
) -> BalancedPlacement:
    """Return a placement with a small load of the busiest device, and a lower bound. Deterministic.

    If few placements exist, all are priced, unless `enumerate_few` is False; otherwise the best of `starts` and of
    generated placements are improved. Columns of `prices` are in any order. Devices in `sharing` share processors and
    count as one.

    Raises:
        GraphError: no device takes some atom, or prices are of another graph.
    """
    ordered = aligned(graph, prices)
    takes = np.isfinite(ordered.run)
    check_all_placeable(graph, ordered.devices, np.flatnonzero(~takes.any(axis=0)).tolist())
    stages = _Stages.of(ordered, frozenset(sharing))
    loads = _Loads(graph, ordered, stages)
    count = prod(takes.sum(axis=0).tolist())
    if enumerate_few and count <= _ENUMERATED:
        choices = [np.flatnonzero(column).tolist() for column in takes.T]
        best = min((np.array(rows, np.int64) for rows in product(*choices)), key=loads.key)
    else:
        row = {device: at for at, device in enumerate(ordered.devices)}
        start_rows = [np.array([row[label] for label in start], np.int64) for start in starts]
        best_starts = sorted([*start_rows, *_fill_devices(ordered, stages)], key=loads.key)[:_STARTS]
        best = min((_improved(loads, start, _WORK // max(1, len(best_starts))) for start in best_starts), key=loads.key)
    placement, of_stages = tuple(ordered.devices[at] for at in best.tolist()), loads.of(best)
    seconds = device_seconds(graph, ordered, placement).tolist()
    return BalancedPlacement(
        placement=placement,
        loads=dict(zip(ordered.devices, seconds, strict=True)),
        busiest=tuple(ordered.devices[row] for row in stages.rows[int(of_stages.argmax())]) if seconds else (),
        stage=float(of_stages.max(initial=0.0)),
        bound=_bound(stages.run),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    rows: Sequence[Sequence[int]]
    stage_of: Indices
    run: Seconds
    """[stages, atoms] Seconds on a stage's fastest device."""
    choices: Sequence[Indices]
    """Device rows [stages, atoms]: first the fastest, then one variant per sharing device that prefers the device."""

    @classmethod
    def of(cls, prices: Prices, sharing: frozenset[str]) -> _Stages:
        together = [row for row, device in enumerate(prices.devices) if device in sharing]
        rows = [[row] for row in range(len(prices.devices)) if row not in together]
        rows += [together] if together else []
        stage_of = np.zeros(len(prices.devices), np.int64)
        run = np.zeros((len(rows), prices.run.shape[1]))
        least = np.zeros(run.shape, np.int64)
        for stage, stage_rows in enumerate(rows):
            stage_of[stage_rows] = stage
            run[stage] = prices.run[stage_rows].min(axis=0)
            least[stage] = np.array(stage_rows)[prices.run[stage_rows].argmin(axis=0)]
        choices = [least]
        for row in together if len(together) > 1 else ():
            choices.append(least.copy())
            choices[-1][stage_of[row], np.isfinite(prices.run[row])] = row
        return cls(rows, stage_of, run, choices)


class _Loads:
    def __init__(self, graph: Graph, prices: Prices, stages: _Stages) -> None:
        self.graph, self.prices, self.stages = graph, prices, stages
        self._known: dict[bytes, Seconds] = {}

    def of(self, rows: Indices) -> Seconds:
        key = rows.tobytes()
        if key not in self._known:
            labels = [self.prices.devices[row] for row in rows.tolist()]
            seconds = device_seconds(self.graph, self.prices, labels)
            self._known[key] = np.bincount(self.stages.stage_of, seconds, len(self.stages.rows)).astype(np.float64)
        return self._known[key]

    def key(self, rows: Indices) -> tuple[float, float]:
        seconds = self.of(rows)
        return float(seconds.max(initial=0.0)), float(seconds.sum())


def _bound(run: Seconds) -> float:
    """Return a lower bound of the busiest load, from [stages, atoms] seconds.

    For weights that add up to 1, the busiest load is at least the weighted mean of the loads, which is at least the sum
    of each atom's cheapest weighted seconds (a Lagrangian bound). Multiplicative updates raise the weights of loaded
    stages. The longest single atom is another bound.
    """
    run = run[np.isfinite(run).any(axis=1)]
    if not run.size:
        return 0.0
    weights = np.full(len(run), 1 / len(run))
    best = float(run.min(axis=0).max())
    for turn in range(_ROUNDS):
        weighted = run * weights[:, None]
        chosen = weighted.argmin(axis=0)
        best = max(best, float(weighted.min(axis=0).sum()))
        seconds = np.bincount(chosen, run[chosen, np.arange(run.shape[1])], len(weights))
        weights = weights * np.exp(seconds / seconds.max(initial=1e-300) * (0.5 / (1 + turn) ** 0.5))
        weights /= weights.sum()
    return best * _REAL


def _fill_devices(prices: Prices, stages: _Stages) -> Iterator[Indices]:
    takes, atoms = np.isfinite(stages.run), np.arange(stages.run.shape[1])
    rows = [row for row in range(len(stages.rows)) if takes[row].any()]
    run = np.where(takes, stages.run, 0.0)
    least, most = _bound(stages.run), float(np.where(takes, run, 0.0).sum(axis=1).max(initial=0.0))
    for order in list(permutations(rows))[:_ORDERS]:
        for load in np.linspace(least, max(least, most), _LOADS).tolist():
            filled = _filled_up_to(run, takes, order, load)
            yield from (choice[filled, atoms] for choice in stages.choices)


def _filled_up_to(run: Seconds, takes: Flags, order: Sequence[int], load: float) -> Indices:
    placed = np.zeros(run.shape[1], np.int64)
    at, current_load = 0, 0.0
    for atom in range(run.shape[1]):
        while at < len(order) - 1 and current_load + run[order[at], atom] > load:
            at, current_load = at + 1, 0.0
        able = [row for row in (*order[at:], *order[:at]) if takes[row, atom]]
        placed[atom] = able[0]
        current_load += run[order[at], atom] if able[0] == order[at] else 0.0
    return placed


def _improved(loads: _Loads, rows: Indices, work: int) -> Indices:
    takes = np.isfinite(loads.prices.run)
    key = loads.key(rows)
    moved = True
    while moved:
        moved = False
        busiest = loads.stages.rows[int(loads.of(rows).argmax())]
        for moved_rows in _moves(loads.graph, rows, busiest, takes):
            if work <= 0:
                return rows
            work -= len(rows)
            moved_key = loads.key(moved_rows)
            if moved_key[0] < key[0] * _REAL or (moved_key[0] <= key[0] and moved_key[1] < key[1] * _REAL):
                rows, key, moved = moved_rows, moved_key, True
                break
    return rows


def _moves(graph: Graph, rows: Indices, busiest: Sequence[int], takes: Flags) -> Iterator[Indices]:
    busy_atoms = np.flatnonzero(np.isin(rows, busiest))
    at_border = _boundary_atoms(graph, rows)[busy_atoms]
    order = [*busy_atoms[at_border].tolist(), *busy_atoms[~at_border].tolist()]
    moves = [(atom, row) for atom, row in product(order, range(len(takes))) if row != rows[atom] and takes[row, atom]]
    for atom, row in moves:
        same = busy_atoms[rows[busy_atoms] == rows[atom]]
        for group in (np.array([atom]), same[same <= atom], same[same >= atom]):
            yield _changed(rows, group[takes[row, group]], row)
    for atom, row in moves:
        for other in np.flatnonzero((rows == row) & takes[rows[atom]]).tolist():
            yield _changed(_changed(rows, atom, row), other, rows[atom])


def _changed(rows: Indices, atoms: Indices | int, row: int | np.int64) -> Indices:
    changed = rows.copy()
    changed[atoms] = row
    return changed


def _boundary_atoms(graph: Graph, rows: Indices) -> Flags:
    topology = topology_of(graph)
    producer, reader = topology.read_producer, topology.reader
    crossing = (producer >= 0) & (rows[producer] != rows[reader])
    flags = np.zeros(len(rows), np.bool_)
    flags[producer[crossing]] = flags[reader[crossing]] = True
    return flags
