"""A minimum s-t cut: by elimination as far as that goes, and by a maximum flow of what is left.

A maximum flow alone will not do. Where much has to flow far, as along a chain of cheap atoms, every augmenting path is
about as long as the graph, and time grows with the square of its size; elimination (`pairwise`) takes the
same time whatever flows. It solves what looks like a chain from far away, as networks do. What is left is joined to and
fro, and paths through it are short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partition.by_cost.pairwise import Elimination, PairwiseCosts, eliminate, plan_elimination, values
from partition.by_cost.windowed_cut import cut_of
from partition.topology import Flags, Indices, Seconds

_KEPT = 8
"""Plans that are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Vertices 0 (the sink), 1 (the source) and further ones; directed edges with capacities in seconds.

    An edge is paid if its tail is on the source's side and its head is not.
    """

    tail: Indices
    head: Indices
    capacity: Seconds
    vertices: int


class Plans:
    """How the networks are eliminated that were cut last: networks of equal edges share it, whatever they cost."""

    def __init__(self) -> None:
        self._eliminations: dict[bytes, Elimination] = {}

    def of(self, count: int, first: Indices, second: Indices) -> Elimination:
        """See `partition.by_cost.pairwise.plan_elimination`."""
        key = np.concatenate([[count], first, second]).tobytes()
        plan = self._eliminations.pop(key, None) or plan_elimination(count, first, second)
        if len(self._eliminations) == _KEPT:
            del self._eliminations[next(iter(self._eliminations))]
        self._eliminations[key] = plan
        return plan


def minimum_cut(network: Network, plans: Plans) -> tuple[Flags, float]:
    """Return the vertices on the source's side [vertices], and a lower bound of every cut in seconds.

    Of several cheapest cuts, the one with fewest vertices on the source's side is found, but for rounding. The bound is
    the cut itself if elimination solves it, and otherwise less by what the rounding of capacities takes.

    Args:
        network: edges lead neither into the source nor out of the sink, nor from the one to the other. Those without
            bound do not make all cuts infinite. Edges that cost nothing are as good as none, but that networks with
            equal edges share a plan.
        plans: remembers how networks are eliminated.
    """
    inner = (network.tail > 1) & (network.head > 1)
    named = np.zeros(network.vertices, np.bool_)
    named[network.tail] = named[network.head] = True
    named[:2] = False
    vertices, number = np.flatnonzero(named), np.cumsum(named) - 1
    tail, head = number[network.tail], number[network.head]
    bounded = np.isfinite(network.capacity)
    above = 2.0 * float(network.capacity[bounded].sum()) or 1.0
    capacity = np.where(bounded, network.capacity, above)
    vertex = np.zeros((2, len(vertices)))
    for state, at, end in ((0, network.tail == 1, head), (1, network.head == 0, tail)):
        vertex[state] = np.bincount(end[at], capacity[at], len(vertices))
    low, high = np.minimum(tail, head)[inner], np.maximum(tail, head)[inner]
    key, inverse = np.unique(low * len(vertices) + high, return_inverse=True)
    rising = tail[inner] < head[inner]
    paid = [np.bincount(inverse[mask], capacity[inner][mask], len(key)) for mask in (~rising, rising)]
    first, second = np.divmod(key, max(1, len(vertices)))
    plan = plans.of(len(vertices), first, second)
    reduced = eliminate(plan, PairwiseCosts(vertex, first, second, np.stack(paid)))
    remaining_values, value = cut_of(reduced.costs, above)
    side = np.zeros(network.vertices, np.bool_)
    side[1] = True
    side[vertices[values(plan, reduced, remaining_values)]] = True
    return side, reduced.least + value
