"""Minimum cuts of what is both long and wide, in windows where a maximum flow would have to go far.

How long a maximum flow takes depends on how far it has to go. Where costs decide locally, as they do if atoms and
transfers cost about the same, that is not far, and the flow of the whole is taken. Where atoms are cheap and transfers
dear, it is as far as the graph is long; then the graph is cut into windows:

1. A window is solved twice, once with everything around it at 0, once at 1. Costs of cuts being submodular, what is 1
   in the first case is 1 in a cheapest cut, and what is 0 in the second case is 0. What this leaves open turns with its
   surroundings.
2. What is left open and joined in a window is made one vertex, and the cut of these is found. It is not always a
   cheapest one, as such a part could be divided.
3. The bound: edges that join windows are left out, so that every window has a cheapest cut of its own. No cut costs
   less than all of these together.
"""

from __future__ import annotations

import numpy as np

from partition.by_cost.maximum_flow import flow_cut, flow_module, square
from partition.by_cost.pairwise import PairwiseCosts, eliminate, plan_elimination, values
from partition.topology import Flags, Indices, Seconds

_NEAR = 20_000
"""Vertices up to which a flow goes as far as it likes."""
_WINDOW = 1_000
"""Vertices of a window."""
_SAMPLED = 8
"""Windows that tell whether flows go far."""
_SETTLED = 16
"""They do not if one in so many vertices is settled within its window."""


def cut_of(costs: PairwiseCosts, above: float) -> tuple[Flags, float]:
    """Return values of the vertices with which costs are least, or nearly so, and a lower bound of them.

    Args:
        costs: none is negative; edges may be given several times.
        above: what costs as much or more is not paid in a minimum cut.
    """
    if costs.vertex.shape[1] <= _NEAR:
        return flow_cut(costs, above)
    window = _windows(costs)
    number = int(window.max()) + 1
    sample = np.isin(window, np.linspace(0, number - 1, _SAMPLED).astype(np.int64))
    low, high = _settled(costs, window, sample, above)
    if _SETTLED * np.count_nonzero(low == high) >= len(low):
        return flow_cut(costs, above)
    every = np.ones(len(window), np.bool_)
    low, high = _settled(costs, window, every, above)
    _, bound = flow_cut(_inside(costs, window, every), above)
    return _joined(costs, window, low, high, above), bound


def _windows(costs: PairwiseCosts) -> Indices:
    """Return the window of every vertex: neighbors are near each other."""
    count = costs.vertex.shape[1]
    ends = np.concatenate([costs.first, costs.second]), np.concatenate([costs.second, costs.first])
    joined = square(np.ones(len(ends[0]), np.int8), *ends, count)
    window = np.empty(count, np.int64)
    window[flow_module().reverse_cuthill_mckee(joined, symmetric_mode=True)] = np.arange(count) // _WINDOW
    return window


def _inside(costs: PairwiseCosts, window: Indices, chosen: Flags, vertex: Seconds | None = None) -> PairwiseCosts:
    """The costs of the chosen vertices, whole windows, without edges that join windows."""
    name = np.cumsum(chosen) - 1
    is_inner = (window[costs.first] == window[costs.second]) & chosen[costs.first]
    vertex_costs = costs.vertex if vertex is None else vertex
    return PairwiseCosts(
        vertex_costs[:, chosen], name[costs.first[is_inner]], name[costs.second[is_inner]], costs.edge[:, is_inner]
    )


def _settled(costs: PairwiseCosts, window: Indices, chosen: Flags, above: float) -> tuple[Flags, Flags]:
    """Return the values of the chosen vertices with all other windows at 0, and at 1."""
    across = window[costs.first] != window[costs.second]
    first, second, edge = costs.first[across], costs.second[across], costs.edge[:, across]
    values_by_state = []
    for state in (0, 1):
        vertex = costs.vertex.copy()
        for end, seconds in ((first, edge[1 - state]), (second, edge[state])):
            vertex[1 - state] += np.bincount(end, seconds, len(window))
        values_by_state.append(flow_cut(_inside(costs, window, chosen, vertex), above)[0])
    return values_by_state[0], values_by_state[0] | values_by_state[1]


def _joined(costs: PairwiseCosts, window: Indices, low: Flags, high: Flags, above: float) -> Flags:
    """Return the values of all vertices, those with one value in a window that are joined and left open being equal."""
    count, still = len(window), low != high
    inner = (window[costs.first] == window[costs.second]) & still[costs.first] & still[costs.second]
    ends = costs.first[inner], costs.second[inner]
    joined = square(np.ones(len(ends[0]), np.int8), *ends, count)
    _, part = flow_module().connected_components(joined, directed=False)
    parts, name = np.unique(part[still], return_inverse=True)
    number = np.full(count, -1, np.int64)
    number[still] = name
    vertex: Seconds = np.stack([np.bincount(name, state_costs[still], len(parts)) for state_costs in costs.vertex])
    for near_end, other, seconds in (
        (costs.first, costs.second, costs.edge),
        (costs.second, costs.first, costs.edge[::-1]),
    ):
        is_adjacent = still[near_end] & ~still[other]
        for state in (0, 1):  # the one is at `state` and the other one is not
            paid = is_adjacent & (low[other] != bool(state))
            vertex[state] += np.bincount(number[near_end[paid]], seconds[state, paid], len(parts))
    between = still[costs.first] & still[costs.second] & (number[costs.first] != number[costs.second])
    chosen = _least(number[costs.first[between]], number[costs.second[between]], costs.edge[:, between], vertex, above)
    vertex_values = low.copy()
    vertex_values[still] = chosen[name]
    return vertex_values


def _least(first: Indices, second: Indices, edge: Seconds, vertex: Seconds, above: float) -> Flags:
    """Eliminate what can be eliminated, and cut the rest."""
    count = vertex.shape[1]
    rising = first < second
    key, inverse = np.unique(np.minimum(first, second) * count + np.maximum(first, second), return_inverse=True)
    paid = [np.bincount(inverse, np.where(rising, forward, two), len(key)) for forward, two in (edge, edge[::-1])]
    low, high = np.divmod(key, max(1, count))
    plan = plan_elimination(count, low, high)
    reduced = eliminate(plan, PairwiseCosts(vertex, low, high, np.stack(paid)))
    return values(plan, reduced, flow_cut(reduced.costs, above)[0])
