"""Placement by latency: the cheapest placement found, what else was tried, and how far from the best it can be.

It needs scipy, the extra `latency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from partition.by_cost.minimum_cuts import flow_module
from partition.by_cost.pricing import Origin, OriginKind, Prices, Rows, aligned, all_on, placement_costs
from partition.by_cost.repeats import Blocks, place_repeats, uniform_placements
from partition.by_cost.search import (
    Named,
    PlacedOnTwo,
    enumerable,
    enumerate_placements,
    place_on_several,
    place_on_two,
)
from partition.graph import Graph, GraphError
from partition.segments import check_all_placeable

_MAX_CANDIDATES = 8
"""Candidates that are returned at most, beside the two baselines."""
_ROUNDING = 1 - 1e-12
"""By how much bounds are lowered, unless they meet the cost: more than sums are rounded by."""
_ALIKE = Origin(OriginKind.REPEATS_ALIKE)
_NAMED = 5
"""How many values an error message names."""

Priced = tuple[float, Rows]
"""Seconds, and for every atom the row of its device."""


class BoundKind(StrEnum):
    """How a lower bound was found."""

    ENUMERATION = "enumeration"
    """All placements were priced: the bound is the least cost."""
    CUT = "cut"
    """A minimum cut with launches along paths, for two devices; see `partition.by_cost.search.place_on_two`."""
    DECOMPOSITION = "decomposition"
    """One minimum cut per device, for three and more; see `partition.by_cost.search`."""
    ONE_DEVICE = "one device"
    """There is one placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A placement that was priced."""

    origin: Origin
    """What found it."""
    placement: tuple[str, ...]
    """The label of every atom."""
    cost: float
    """Seconds, with its real segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestPlacement:
    """The cheapest placement found, and what is known of it."""

    placement: tuple[str, ...]
    """The label of every atom."""
    cost: float
    """Seconds, with its real segments."""
    bound: float
    """Seconds: no placement costs less."""
    bound_kind: BoundKind
    """How the bound was found."""
    candidates: tuple[Candidate, ...]
    """Distinct placements, cheapest first, this one being the first. Everything on the host and everything supported
    are among them where they can run; where one of them was found by another way too, this is its origin."""
    repeats: tuple[int, ...] = ()
    """Per run of repeats of which a few were solved for all (`partition.by_cost.repeats`), how many they are."""

    @property
    def gap(self) -> float:
        """How far the cost is above the bound, as a share of the bound; 0 where both are 0."""
        if self.cost <= self.bound:
            return 0.0
        return self.cost / self.bound - 1 if self.bound > 0 else float("inf")


def place_by_latency(
    graph: Graph, prices: Prices, *, blocks: Sequence[Blocks] = (), enumerate_few: bool = True
) -> CheapestPlacement:
    """Return the cheapest placement that is found, a lower bound of every placement's cost, and what else was tried.

    Atoms that one device alone takes, and atoms that a value joins which may not cross, are merged first. If what is
    left has few placements on two devices, all are priced. Else two devices are placed as `place_on_two` says, more
    devices as `place_on_several` says. The result depends on nothing but the arguments; the work is bounded by atoms
    touched, so its time grows linearly. Of a graph that is little but repeats, one repeat of each block is solved
    (`partition.by_cost.repeats`). Of placements that cost the same, one that treats the repeats of a block alike
    is returned.

    Args:
        graph: the graph.
        prices: its prices, columns in any order.
        blocks: what repeats in the graph (`partition.by_cost.repeats.find_blocks`).
        enumerate_few: whether few placements may be enumerated; without, small graphs are placed as large ones are.

    Raises:
        GraphError: no device takes some atom, values that may not cross leave no placement, prices are of another
            graph, or scipy is not installed.
    """
    flow_module()
    ordered = aligned(graph, prices)
    homeless = np.flatnonzero(np.isinf(ordered.run).all(axis=0))
    check_all_placeable(graph, ordered.devices, homeless.tolist())
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
    """Leave out devices that take nothing."""
    rows = np.flatnonzero(np.isfinite(prices.run).any(axis=1))
    return prices if len(rows) == len(prices.devices) else prices.of_rows(rows.tolist())


def _baselines(prices: Prices) -> tuple[Named, ...]:
    """Everything on the host, if it takes everything; what others take on the first of them, the rest on the host."""
    takes = np.isfinite(prices.run)
    host = prices.devices.index(prices.host) if prices.host in prices.devices else -1
    order = np.array([*(row for row in range(len(prices.devices)) if row != host), *([host] if host >= 0 else [])])
    supported = order[takes[order].argmax(axis=0)].astype(np.int8)
    named = [(Origin(OriginKind.EVERYTHING_SUPPORTED), supported)]
    if host >= 0 and takes[host].all():
        named.insert(0, (all_on(prices.host), np.full(takes.shape[1], host, np.int8)))
    return tuple(named)


def _solve(
    graph: Graph, prices: Prices, starts: tuple[Named, ...], blocks: Sequence[Blocks], enumerate_few: bool
) -> tuple[PlacedOnTwo | None, BoundKind]:
    if len(prices.devices) == 1:
        return PlacedOnTwo(starts, float("inf")), BoundKind.ONE_DEVICE
    if len(prices.devices) > 2:
        solution = place_repeats(graph, prices, starts, blocks) or place_on_several(graph, prices, starts)
        return solution, BoundKind.DECOMPOSITION
    movable = np.flatnonzero(np.isfinite(prices.run).all(axis=0))
    if not enumerate_few or not enumerable(graph, movable):
        return place_repeats(graph, prices, starts, blocks) or place_on_two(graph, prices, starts), BoundKind.CUT
    best = enumerate_placements(graph, prices, starts[-1][1], movable)
    return PlacedOnTwo((*starts, (Origin(OriginKind.ENUMERATION), best)), float("inf")), BoundKind.ENUMERATION


def _candidates(
    graph: Graph, prices: Prices, named: tuple[Named, ...], baselines: int, blocks: Sequence[Blocks]
) -> tuple[Candidate, ...]:
    """The cheapest of the distinct placements that can run, and the first ones in any case; cheapest first."""
    origins: dict[bytes, Origin] = {}
    for origin, rows in named:
        origins.setdefault(rows.tobytes(), origin)
    priced = _priced(graph, prices, named)
    if priced and blocks:
        priced = _distinct([*_with_equal_repeats(graph, prices, priced[0], blocks), *priced])
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


def _priced(graph: Graph, prices: Prices, named: Sequence[Named]) -> list[Priced]:
    different = list({rows.tobytes(): rows for _, rows in reversed(named)}.values())[::-1]
    costs = placement_costs(graph, prices, different).tolist()
    return _distinct([(cost, rows) for cost, rows in zip(costs, different, strict=True) if np.isfinite(cost)])


def _distinct(priced: Sequence[Priced]) -> list[Priced]:
    """Cheapest first; of equal placements and of equal costs the first."""
    placements: dict[bytes, Priced] = {}
    for cost, rows in sorted(priced, key=lambda entry: entry[0]):
        placements.setdefault(rows.tobytes(), (cost, rows))
    return list(placements.values())


def _with_equal_repeats(graph: Graph, prices: Prices, best: Priced, blocks: Sequence[Blocks]) -> list[Priced]:
    """Placements that treat repeats alike and cost no more than `best` but for rounding, which is left out."""
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
    named = ", ".join(repr(prices.values[at]) for at in stuck[:_NAMED])
    more = f" and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
    return (
        f"no placement on {list(prices.devices)} was found that can run: the values {named}{more} may not cross "
        "between devices; let a device that takes everything end the list"
    )
