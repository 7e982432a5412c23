"""The neighbourhood of a placement on two devices, searched with true prices; tiny graphs are enumerated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from partition.batches import Rows, price_many
from partition.flows import flow_module
from partition.graph import Graph
from partition.pricing import Prices
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
    best: Rows = every[:, int(_priced(graph, prices, every).argmin())]
    return best


def improve(graph: Graph, prices: Prices, rows: Rows, movable: Indices, work: int) -> tuple[Rows, int]:
    """Move atoms to the other device as long as that makes a placement cheaper.

    A move takes an atom, two atoms of one device that read from each other, a segment, or a connected part of one. All
    moves are priced; then the best one, the best two, four, eight and so on are made together and priced again; the
    cheapest of these placements is the next one.

    Args:
        graph: the graph.
        prices: of two devices, columns in the order of the graph's topology.
        rows: [atoms] the placement to start from.
        movable: atoms that both devices take.
        work: atoms that may be touched. A round is not begun that needs more than what is left.

    Returns:
        The placement, and the work that is left.
    """
    free = np.zeros(len(rows), np.bool_)
    free[movable] = True
    cost = float("inf")
    while len(movable) * len(rows) <= work:
        moves = list(_moves(graph, rows, free))
        cost = cost if np.isfinite(cost) else float(price_many(graph, prices, rows[:, None])[0])
        if not moves or len(moves) * len(rows) > work:
            break
        work -= len(moves) * len(rows)
        after = _priced_moves(graph, prices, rows, moves)
        better = np.argsort(after, kind="stable")[: int((after < cost * _REAL).sum())]
        if not len(better):
            break
        together = _together(rows, [moves[int(move)] for move in better])
        costs = _priced(graph, prices, together)
        rows, cost = together[:, int(costs.argmin())], float(costs.min())
    return rows, work


def _moves(graph: Graph, rows: Rows, free: Flags) -> Iterator[Indices]:
    """Sets of atoms that may move, each of one device."""
    yield from np.flatnonzero(free)[:, None]
    topology = topology_of(graph)
    before, after = topology.producer[topology.read_value], topology.reader
    joined = (before >= 0) & free[before] & free[after] & (rows[before] == rows[after])
    pairs = np.stack([before[joined], after[joined]], axis=1)
    yield from np.unique(pairs, axis=0)
    for part in _parts(graph, rows):
        able = part[free[part]]
        if len(able) > 1:
            yield able


def _parts(graph: Graph, rows: Rows) -> Iterator[Indices]:
    """Segments of at least two atoms, and connected parts of those that have several."""
    from scipy import sparse

    names = ("0", "1")
    segments = cut(graph, [names[row] for row in rows.tolist()], host="0").segments
    home = np.zeros(len(rows), np.int64)
    for at, segment in enumerate(segments):
        home[list(segment.atoms)] = at
        yield np.array(segment.atoms, np.int64)
    topology = topology_of(graph)
    before, after = topology.producer[topology.read_value], topology.reader
    inside = (before >= 0) & (home[before] == home[after])
    ones = np.ones(int(inside.sum()), np.int8)
    joined = sparse.csr_array((ones, (before[inside], after[inside])), (len(rows), len(rows)))
    number, part = flow_module().connected_components(joined, directed=False)
    order = np.argsort(part, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(part, minlength=number))[:-1])
    yield from (piece for piece in pieces if len(piece) < len(segments[home[piece[0]]].atoms))


def _priced_moves(graph: Graph, prices: Prices, rows: Rows, moves: Sequence[Indices]) -> Seconds:
    width = max(1, _AT_ONCE // max(1, len(topology_of(graph).reader), len(rows)))
    costs = []
    for start in range(0, len(moves), width):
        block = moves[start : start + width]
        changed = np.repeat(rows[:, None], len(block), axis=1)
        atoms = np.concatenate(block)
        columns = np.repeat(np.arange(len(block)), [len(move) for move in block])
        changed[atoms, columns] = 1 - changed[atoms, columns]
        costs.append(price_many(graph, prices, changed))
    return np.concatenate(costs)


def _priced(graph: Graph, prices: Prices, rows: Rows) -> Seconds:
    width = max(1, _AT_ONCE // max(1, len(topology_of(graph).reader), len(rows)))
    blocks = range(0, rows.shape[1], width)
    return np.concatenate([price_many(graph, prices, rows[:, start : start + width]) for start in blocks])


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
