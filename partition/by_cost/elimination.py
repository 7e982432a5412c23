"""Variable elimination: exact minimum of pairwise costs over binary variables of a sparse graph.

Elimination of a vertex creates a table: for all values of its neighbors, the minimal cost of the vertex and of tables
that it took over. The neighbor to be eliminated next takes over this table. Values are found in reverse order (dynamic
programming). Unlike maximum flow, the time does not depend on path lengths. Source: U. Bertele, F. Brioschi, Nonserial
Dynamic Programming, Academic Press (1972).

Independent random vertices are eliminated at once, so a chain takes logarithmically many rounds. Source: M. Luby, A
Simple Parallel Algorithm for the Maximal Independent Set Problem, SIAM Journal on Computing 15 (1986).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partition.by_cost.pricing import Flags, Indices, Seconds

_WIDTH = 8
_NARROW = 2
"""Largest number of neighbors of a table that can become edge costs."""
_DENSE = 8
_FEW = 16
"""The allowed degree rises after a round that eliminates less than one in this many of the vertices."""
_SMALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class EliminatedGroup:
    """Independent vertices of equal degree, eliminated at once."""

    vertices: Indices
    neighbors: Indices
    """[k, n] Neighbors of each vertex when it is eliminated, ascending."""


def elimination_groups(count: int, first: Indices, second: Indices) -> tuple[EliminatedGroup, ...]:
    """Return the elimination order of a graph with `count` vertices and distinct edges first < second.

    A connected set of eliminated vertices has at most two remaining neighbors, so it acts as an edge. Linear in the
    edges.
    """
    groups: list[EliminatedGroup] = []
    rank = np.random.default_rng(0).permutation(count)
    edges = np.sort(first * count + second)
    is_remaining, alive, width = np.ones(count, np.bool_), count, _NARROW
    while alive and len(edges) <= _DENSE * alive:
        ends = np.divmod(edges, count)
        degree = np.bincount(ends[0], minlength=count) + np.bincount(ends[1], minlength=count)
        chosen = _independent(is_remaining & (degree <= width), degree * count + rank, ends)
        number = int(np.count_nonzero(chosen))
        few = number * _FEW < alive and alive > _SMALL
        if (few or not number) and width == _WIDTH:
            break
        width += few or not number
        new_groups, edges = _eliminated(chosen, degree, edges, ends)
        groups += new_groups
        is_remaining &= ~chosen
        alive -= number
    return tuple(_acting_as_edges(groups, count))


def _independent(able: Flags, key: Indices, ends: tuple[Indices, Indices]) -> Flags:
    both = able[ends[0]] & able[ends[1]]
    first, second = ends[0][both], ends[1][both]
    chosen = able.copy()
    chosen[np.where(key[first] < key[second], second, first)] = False
    return chosen


def _eliminated(
    chosen: Flags, degree: Indices, edges: Indices, ends: tuple[Indices, Indices]
) -> tuple[list[EliminatedGroup], Indices]:
    count = len(chosen)
    is_removed = chosen[ends[0]] | chosen[ends[1]]
    first, second = ends[0][is_removed], ends[1][is_removed]
    forward = chosen[first]
    other = np.sort(np.where(forward, first * count + second, second * count + first)) % count
    vertices = np.flatnonzero(chosen)
    number = degree[vertices]
    start = np.cumsum(number) - number
    groups, parts = [], [edges[~is_removed]]
    for size in np.unique(number).tolist():
        members = number == size
        neighbors = other[start[members][:, None] + np.arange(size)]
        groups.append(EliminatedGroup(vertices[members], neighbors))
        row_index, two = np.triu_indices(size, 1)
        parts.append((neighbors[:, row_index] * count + neighbors[:, two]).ravel())
    together = np.sort(np.concatenate(parts))  # numpy.unique hashes, which is slower
    return groups, together[np.diff(together, prepend=-1) > 0]


def _acting_as_edges(groups: list[EliminatedGroup], count: int) -> Iterator[EliminatedGroup]:
    turn = turns(groups, count)
    stays = turn < len(groups)
    for group in reversed(groups):
        if group.neighbors.shape[1] > _NARROW:
            heir = next_neighbors(group, turn)
            stays[group.vertices] = stays[heir]
    for group in groups:
        is_eliminated = stays[group.vertices]
        if is_eliminated.any():
            yield EliminatedGroup(group.vertices[is_eliminated], group.neighbors[is_eliminated])


def turns(groups: list[EliminatedGroup] | tuple[EliminatedGroup, ...], count: int) -> Indices:
    """Return the index of the group that eliminates each vertex, or `len(groups)` if it remains."""
    turn = np.full(count, len(groups), np.int64)
    for at, group in enumerate(groups):
        turn[group.vertices] = at
    return turn


def next_neighbors(group: EliminatedGroup, turn: Indices) -> Indices:
    """Return, for each vertex, the neighbor that is eliminated first; every vertex must have one."""
    nearest = turn[group.neighbors].argmin(axis=1)
    heir: Indices = np.take_along_axis(group.neighbors, nearest[:, None], axis=1)[:, 0]
    return heir


@dataclass(frozen=True, slots=True, eq=False)
class PairwiseCosts:
    """Finite costs of the values of binary vertices, and of edges between vertices with different values."""

    vertex: Seconds
    first: Indices
    second: Indices
    """[edges] Larger than `first`; edges are distinct."""
    edge: Seconds
    """[2, edges] Cost of (0, 1), and of (1, 0)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Elimination:
    """Elimination of a group. In a table's index, bit 0 is the vertex's value, bit i + 1 is the value of neighbor i."""

    group: EliminatedGroup
    edge: Indices
    forward: Flags
    row: Indices
    slot: Indices
    begin: int
    consumed_table_starts: Indices
    """[t] Tables of earlier groups that this elimination adds to its own."""
    taker: Indices
    weights: NDArray[np.int32]
    """[t, neighbors + 1] Strides of the bits in a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """Plan to eliminate vertices of a graph, for any costs."""

    count: int
    steps: tuple[_Elimination, ...]
    size: int
    remaining_vertices: Indices
    remaining_edges: Indices
    over: tuple[tuple[Indices, Indices], ...]
    """Tables [t] that no elimination takes over, and their neighbors [t, n]: first for n = 1, then for n = 2."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """Problem that remains after elimination."""

    costs: PairwiseCosts
    least: float
    """Part of the minimum that does not depend on the remaining vertices."""
    choices: tuple[Flags, ...]
    """Better value of a vertex for all values of its neighbors, per step [k, 2 ** n]."""


def plan_elimination(count: int, first: Indices, second: Indices) -> Elimination:
    """Return the elimination plan of a graph; see `elimination_groups`."""
    groups = elimination_groups(count, first, second)
    turn = turns(groups, count)
    row = np.zeros(count, np.int64)
    for group in groups:
        row[group.vertices] = np.arange(len(group.vertices))
    slots = _Slots(groups, count)
    sooner = np.where(turn[first] < turn[second], first, second)
    edges = _by_turn(turn[sooner], len(groups))
    begins = np.cumsum([0, *(len(group.vertices) << group.neighbors.shape[1] for group in groups)])
    heirs = [next_neighbors(group, turn) if group.neighbors.shape[1] else group.vertices[:0] for group in groups]
    tables = _by_turn(turn[np.concatenate([*heirs, row[:0]])], len(groups))
    sizes = [len(heir) for heir in heirs]
    owner = np.repeat(np.arange(len(groups)), sizes)
    place = np.concatenate([*(np.arange(size) for size in sizes), row[:0]])
    steps = []
    for at, group in enumerate(groups):
        group_edges = edges[at]
        members = sooner[group_edges]
        neighbors = first[group_edges] + second[group_edges] - members
        offsets, taker, weights = _takes(group, groups, heirs, begins, owner[tables[at]], place[tables[at]], row, slots)
        steps.append(
            _Elimination(
                group,
                group_edges,
                first[group_edges] == members,
                row[members],
                slots(members, neighbors),
                int(begins[at]),
                offsets,
                taker,
                weights,
            )
        )
    remaining_vertices = np.flatnonzero(turn == len(groups))
    return Elimination(
        count,
        tuple(steps),
        int(begins[-1]),
        remaining_vertices,
        edges[len(groups)],
        _unclaimed_tables(groups, turn, begins),
    )


class _Slots:
    def __init__(self, groups: tuple[EliminatedGroup, ...], count: int) -> None:
        none = np.zeros(0, np.int64)
        keys = [none, *((group.vertices[:, None] * count + group.neighbors).ravel() for group in groups)]
        slots = [none, *(np.tile(np.arange(n.shape[1]), len(n)) for n in (group.neighbors for group in groups))]
        key, slot = np.concatenate(keys), np.concatenate(slots)
        order = np.argsort(key)
        self._count, self._key, self._slot = count, key[order], slot[order]

    def __call__(self, vertex: Indices, neighbor: Indices) -> Indices:
        slots: Indices = self._slot[np.searchsorted(self._key, vertex * self._count + neighbor)]
        return slots


def _by_turn(turn: Indices, count: int) -> list[Indices]:
    order = np.argsort(turn, kind="stable")
    return np.split(order, np.cumsum(np.bincount(turn, minlength=count + 1))[:-1])


def _takes(
    group: EliminatedGroup,
    groups: tuple[EliminatedGroup, ...],
    heirs: list[Indices],
    begins: Indices,
    owner: Indices,
    place: Indices,
    row: Indices,
    slots: _Slots,
) -> tuple[Indices, Indices, NDArray[np.int32]]:
    parts = []
    for number in np.unique(owner).tolist():
        at = place[owner == number]
        neighbors, heir = groups[number].neighbors[at], heirs[number][at]
        size = neighbors.shape[1]
        weights = np.zeros((len(at), group.neighbors.shape[1] + 1), np.int32)
        is_other_neighbor = neighbors != heir[:, None]
        rows, bits = np.nonzero(is_other_neighbor)
        weights[rows, slots(heir[rows], neighbors[is_other_neighbor]) + 1] = 1 << bits
        rows, bits = np.nonzero(~is_other_neighbor)
        weights[rows, 0] = 1 << bits
        parts.append((begins[number] + (at << size), row[heir], weights))
    if not parts:
        none = np.zeros(0, np.int64)
        return none, none, np.zeros((0, group.neighbors.shape[1] + 1), np.int32)
    offsets, taker, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return offsets, taker, weights


def _unclaimed_tables(
    groups: tuple[EliminatedGroup, ...], turn: Indices, begins: Indices
) -> tuple[tuple[Indices, Indices], ...]:
    over = []
    for size in (1, 2):
        begin, neighbors = [np.zeros(0, np.int64)], [np.zeros((0, size), np.int64)]
        for at, group in enumerate(groups):
            if group.neighbors.shape[1] == size:
                last = np.flatnonzero((turn[group.neighbors] == len(groups)).all(axis=1))
                begin.append(begins[at] + (last << size))
                neighbors.append(group.neighbors[last])
        over.append((np.concatenate(begin), np.concatenate(neighbors)))
    return tuple(over)


def eliminate(plan: Elimination, costs: PairwiseCosts) -> Reduced:
    """Minimize costs over the eliminated vertices; return the remaining problem."""
    tables = np.zeros(plan.size)
    least, choices = 0.0, []
    for step in plan.steps:
        table = _table(step, costs, tables)
        cost_of_zero, cost_of_one = table[:, 0::2], table[:, 1::2]
        choices.append(cost_of_one < cost_of_zero)
        minima = np.minimum(cost_of_zero, cost_of_one)
        base = minima.min(axis=1)
        least += float(base.sum())
        tables[step.begin : step.begin + minima.size] = (minima - base[:, None]).ravel()
    return Reduced(_remaining_costs(plan, costs, tables), least, tuple(choices))


def _table(step: _Elimination, costs: PairwiseCosts, tables: Seconds) -> Seconds:
    number, size = step.group.neighbors.shape
    bits = (np.arange(2 << size) >> np.arange(size + 1)[:, None]) & 1
    coefficients = np.zeros((number, 2 * size + 2))
    coefficients[:, :2] = costs.vertex[:, step.group.vertices].T
    coefficients[step.row, 2 + step.slot] = np.where(step.forward, costs.edge[0, step.edge], costs.edge[1, step.edge])
    coefficients[step.row, 2 + size + step.slot] = np.where(
        step.forward, costs.edge[1, step.edge], costs.edge[0, step.edge]
    )
    vertex_bit, neighbor_bits = bits[0], bits[1:]
    table: Seconds = coefficients @ np.concatenate(
        [[1 - vertex_bit, vertex_bit], (1 - vertex_bit) * neighbor_bits, vertex_bit * (1 - neighbor_bits)]
    ).astype(np.float64)
    if len(step.consumed_table_starts):
        place = step.consumed_table_starts[:, None] + step.weights @ bits
        entry = (step.taker[:, None] << (size + 1)) + np.arange(2 << size)
        table += np.bincount(entry.ravel(), tables[place].ravel(), table.size).reshape(table.shape)
    return table


def _remaining_costs(plan: Elimination, costs: PairwiseCosts, tables: Seconds) -> PairwiseCosts:
    """Return the remaining costs, with tables that no elimination took over as costs of vertices and edges.

    A table of two neighbors a and b is a sum of vertex costs and of multiples of [a = 1, b = 0] and [a = 0, b = 1]. A
    negative multiple is added to the other, as [a = 1, b = 0] is a - b + [a = 0, b = 1]. Their sum is non-negative,
    because tables are submodular if all edge costs are non-negative.
    """
    name = np.full(plan.count, -1, np.int64)
    name[plan.remaining_vertices] = np.arange(len(plan.remaining_vertices))
    vertex = costs.vertex[:, plan.remaining_vertices].copy()
    (lone, of_one), (pair, of_two) = plan.over
    lone_neighbor = name[of_one[:, 0]] if len(lone) else lone
    first, second = name[of_two[:, 0]], name[of_two[:, 1]]
    none, first_only, two, both = (tables[pair + state] for state in range(4))
    down, up = first_only - both, two - none
    low_down, low_up = np.minimum(down, 0.0), np.minimum(up, 0.0)
    for vertices, state, seconds in (
        (lone_neighbor, 0, tables[lone]),
        (lone_neighbor, 1, tables[lone + 1]),
        (first, 0, none),
        (first, 1, both + low_down - low_up),
        (second, 1, low_up - low_down),
    ):
        vertex[state] += np.bincount(vertices, seconds, len(plan.remaining_vertices))
    edge = np.stack([np.maximum(up, 0.0) + low_down, np.maximum(down, 0.0) + low_up])
    remaining_edges = plan.remaining_edges
    ends = (
        np.concatenate([name[costs.first[remaining_edges]], first]),
        np.concatenate([name[costs.second[remaining_edges]], second]),
    )
    return PairwiseCosts(vertex, *ends, np.maximum(np.concatenate([costs.edge[:, remaining_edges], edge], axis=1), 0.0))


def values(plan: Elimination, reduced: Reduced, remaining_values: Flags) -> Flags:
    """Return the values of all vertices, from the values of the remaining ones."""
    vertex_values = np.zeros(plan.count, np.bool_)
    vertex_values[plan.remaining_vertices] = remaining_values
    for step, choices in zip(reversed(plan.steps), reversed(reduced.choices), strict=True):
        neighbors = step.group.neighbors
        state = vertex_values[neighbors] @ (1 << np.arange(neighbors.shape[1]))
        vertex_values[step.group.vertices] = choices[np.arange(len(neighbors)), state]
    return vertex_values
