"""In which order the vertices of a graph are eliminated, so that each has few neighbors when its turn comes.

To eliminate a vertex is to join its neighbors with each other and to take it away. A chain, blocks in a row with
shortcuts, branches that meet again: such graphs are eliminated vertex by vertex with at most a few neighbors each, and
whatever is a sum over edges is minimized over all vertices on the way (`partition.by_cost.pairwise`).

Source: U. Bertele, F. Brioschi, Nonserial Dynamic Programming, Academic Press (1972). Vertices that are not joined are
eliminated at once, chosen at random as M. Luby, A Simple Parallel Algorithm for the Maximal Independent Set Problem,
SIAM Journal on Computing 15 (1986), says; so a chain takes a number of rounds that grows with its logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from partition.topology import Flags, Indices

_WIDTH = 8
"""Neighbors that a vertex may have when it is eliminated."""
_NARROW = 2
"""Neighbors of which a function is a sum over edges again, so that a minimum cut can go on with it."""
_DENSE = 8
"""Edges per vertex that is left at which it is given up: too many neighbors are to be expected."""
_FEW = 16
"""A round eliminates one in so many of the vertices left, or the next one allows more neighbors."""
_SMALL = 64
"""Vertices that are eliminated even if every round takes but a few."""


@dataclass(frozen=True, slots=True, eq=False)
class EliminatedGroup:
    """Vertices eliminated at once: no two are joined, and all have equally many neighbors."""

    vertices: Indices
    """[k]"""
    neighbors: Indices
    """[k, n] of each when it is eliminated, ascending."""


def elimination_groups(count: int, first: Indices, second: Indices) -> tuple[EliminatedGroup, ...]:
    """Return which vertices are eliminated, in order; those that are left would have too many neighbors.

    Whatever is eliminated together with others, joined to them, has at most two neighbors that are left in the end. So
    what is eliminated acts on what is left as edges do. The work is bounded by a multiple of the edges.

    Args:
        count: number of vertices.
        first: [edges] the one end of every edge.
        second: [edges] the other one, larger; every edge is given once.
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
    """Those of the vertices that are `able` whose key is less than that of each able neighbor."""
    both = able[ends[0]] & able[ends[1]]
    first, second = ends[0][both], ends[1][both]
    chosen = able.copy()
    chosen[np.where(key[first] < key[second], second, first)] = False
    return chosen


def _eliminated(
    chosen: Flags, degree: Indices, edges: Indices, ends: tuple[Indices, Indices]
) -> tuple[list[EliminatedGroup], Indices]:
    """Return the groups of the chosen vertices, and the edges that are left with those that are new."""
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
    together = np.sort(np.concatenate(parts))  # numpy.unique hashes, which takes longer
    return groups, together[np.diff(together, prepend=-1) > 0]


def _acting_as_edges(groups: list[EliminatedGroup], count: int) -> Iterator[EliminatedGroup]:
    """Leave out vertices that make a function of more neighbors than two which are left in the end.

    The neighbor that is eliminated next takes the function over. So a vertex of many neighbors stays eliminated if
    that one does.
    """
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
    """Return when each vertex is eliminated: the position of its group, or the number of groups if it is left."""
    turn = np.full(count, len(groups), np.int64)
    for at, group in enumerate(groups):
        turn[group.vertices] = at
    return turn


def next_neighbors(group: EliminatedGroup, turn: Indices) -> Indices:
    """Return the neighbor of every vertex that is eliminated next; one that is left if all are. They have some."""
    nearest = turn[group.neighbors].argmin(axis=1)
    heir: Indices = np.take_along_axis(group.neighbors, nearest[:, None], axis=1)[:, 0]
    return heir
