"""The neighborhood of a placement on two devices, searched with true prices; tiny graphs are enumerated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from partition.by_cost.batches import Rows, price_many
from partition.by_cost.maximum_flow import flow_module, square
from partition.by_cost.pricing import Prices
from partition.graph import Graph
from partition.segments import cut
from partition.topology import Flags, Indices, Seconds, topology_of

_AT_ONCE = 1_000_000
"""Numbers in the largest array of a batch."""
_ENUMERATED = 16_384
"""Placements that an enumeration prices at most."""
_TOUCHED = 2_000_000
"""Atoms that it touches at most."""
_REAL = 1 - 1e-12
"""What a placement must cost, as a share of another, to count as cheaper: less is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementCosts:
    """What placements on two devices cost, many at once."""

    graph: Graph
    prices: Prices
    """Columns in the order of the graph's topology."""
    home: Indices | None = None
    """[atoms] Where placements are of a shorter graph: the atom there that stands for each one here."""

    @property
    def atoms(self) -> int:
        """Atoms that one placement touches."""
        return len(self.graph.atoms)

    @property
    def at_once(self) -> int:
        """How many placements are best priced together."""
        return max(1, _AT_ONCE // max(1, len(topology_of(self.graph).reader), self.atoms))

    def of(self, rows: Rows) -> Seconds:
        """Return the seconds [placements] of rows [atoms, placements]."""
        blocks = (rows[:, start : start + self.at_once] for start in range(0, rows.shape[1], self.at_once))
        homes = (block if self.home is None else block[self.home] for block in blocks)
        return np.concatenate([price_many(self.graph, self.prices, home_rows) for home_rows in homes])


def enumerable(graph: Graph, movable: Indices) -> bool:
    """Whether all placements of `movable` atoms are few enough to be priced."""
    return (
        len(movable) < 63
        and 2 ** len(movable) * min(len(graph.atoms), _TOUCHED) <= _TOUCHED
        and (2 ** len(movable) <= _ENUMERATED)
    )


def enumerate_placements(graph: Graph, prices: Prices, rows: Rows, movable: Indices) -> Rows:
    """Return the cheapest of all placements that agree with `rows` [atoms] on what is not `movable`."""
    numbers = np.arange(2 ** len(movable))
    every = np.repeat(rows[:, None], len(numbers), axis=1)
    every[movable] = (numbers >> np.arange(len(movable))[:, None]) & 1
    best: Rows = every[:, int(PlacementCosts(graph, prices).of(every).argmin())]
    return best


def improve(graph: Graph, costs: PlacementCosts, rows: Rows, movable: Indices, work: int) -> tuple[Rows, int]:
    """Move atoms to the other device as long as that makes a placement cheaper.

    A move takes an atom, two atoms of one device that read from each other, a segment, or a connected part of one. All
    moves are priced; then the best one, the best two, four, eight and so on are made together and priced again; the
    cheapest of these placements is the next one.

    Args:
        graph: the graph.
        costs: of placements of its atoms; they may be those of a longer graph.
        rows: [atoms] the placement to start from.
        movable: atoms that both devices take.
        work: atoms that may be touched. A round is not begun that needs more than what is left.

    Returns:
        The placement, and the work that is left.
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
    """Sets of atoms that may move, each of one device."""
    yield from np.flatnonzero(free)[:, None]
    topology = topology_of(graph)
    producer, reader = topology.producer[topology.read_value], topology.reader
    joined = (producer >= 0) & free[producer] & free[reader] & (rows[producer] == rows[reader])
    pairs = np.stack([producer[joined], reader[joined]], axis=1)
    yield from np.unique(pairs, axis=0)
    for part in _parts(graph, rows):
        able = part[free[part]]
        if len(able) > 1:
            yield able


def _parts(graph: Graph, rows: Rows) -> Iterator[Indices]:
    """Segments of at least two atoms, and connected parts of those that have several."""
    names = ("0", "1")
    segments = cut(graph, [names[row] for row in rows.tolist()], host="0").segments
    home = np.zeros(len(rows), np.int64)
    for at, segment in enumerate(segments):
        home[list(segment.atoms)] = at
        yield np.array(segment.atoms, np.int64)
    topology = topology_of(graph)
    producer, reader = topology.producer[topology.read_value], topology.reader
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
    """[atoms, n] `rows` after the first one, two, four, ... and all of `moves`."""
    sizes = [size for size in accumulate([1] * 63, lambda size, _: 2 * size) if size < len(moves)]
    results = []
    for size in [*sizes, len(moves)]:
        changed = rows.copy()
        atoms = np.unique(np.concatenate(moves[:size]))
        changed[atoms] = 1 - rows[atoms]
        results.append(changed)
    return np.stack(results, axis=1)
