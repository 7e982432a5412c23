"""Minimum s-t cuts: optimal placements on two devices except for launches, and surcharges that approximate launches.

Placement without launches is one minimum cut: H. S. Stone, Multiprocessor Scheduling with the Aid of Network Flow
Algorithms, IEEE TSE 3 (1977). The source's side is the second device, the sink's side the first. An atom is a vertex,
joined to the sink or the source with the difference of its costs. A value crosses once per direction, so one with
several readers has a vertex per direction that changes sides with its first reader.

Variable elimination solves the chain-like parts and maximum flow the rest, because flow alone is quadratic on chains. A
large graph with long flows is solved in windows:

1. A window is solved with its surroundings at 0 and at 1. By submodularity, vertices that are 1 in the first case or 0
   in the second have that value in a minimum cut.
2. Connected undecided vertices of a window are merged, and the merged graph is cut, not always optimally.
3. Without edges between windows, each window has a minimum cut; their sum is a lower bound.

Launches along a path: a label has at least as many segments as runs on the path. One launch for the first atom and one
per label change is a sum over edges, which a cut can carry (`Surcharge`). Such a cut, also with an average over paths,
is a lower bound of the true cost. Paths and placements play a zero-sum game: after each cut, the path with most
launches is added to the average. Source: J. Robinson, An Iterative Method of Solving a Game, Annals of Mathematics 54
(1951).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partition.by_cost.elimination import Elimination, PairwiseCosts, eliminate, plan_elimination, values
from partition.by_cost.pricing import Flags, Indices, Prices, Rows, Seconds, Topology
from partition.graph import Graph, GraphError

_INFINITE = 1 << 30
"""At least twice any flow, so that residual capacities fit in 31 bits."""
_MAX_TOTAL_FLOW = 1 << 29
_LEAST = 1e-100


def flow_module() -> ModuleType:
    """Return scipy's graph algorithms.

    Raises:
        GraphError: scipy is not installed.
    """
    try:
        from scipy.sparse import csgraph
    except ImportError:
        raise GraphError(
            "placement by latency needs scipy, which is not installed; install it: pip install 'nnadapter[latency]'"
        ) from None
    module: ModuleType = csgraph
    return module


def square(values: NDArray[Any], rows: Indices, columns: Indices, count: int) -> Any:
    """Return a square sparse matrix of scipy, with int32 indices as scipy before 1.15 requires."""
    from scipy import sparse

    return sparse.csr_array((values, (rows.astype(np.int32), columns.astype(np.int32))), (count, count))


def flow_cut(costs: PairwiseCosts, above: float) -> tuple[Flags, float]:
    """Minimize `costs` by one maximum flow; return the vertices with value 1 (the fewest possible), and a lower bound.

    Capacities are rounded down, so the rounded minimum is a lower bound. Edges of `above` or more count as infinite,
    because no minimum cut includes them. Edges may be duplicated.
    """
    count = costs.vertex.shape[1]
    if not count:
        return np.zeros(0, np.bool_), 0.0
    csgraph = flow_module()
    least = costs.vertex.min(axis=0)
    more = costs.vertex - least
    ends, ones, zeros = np.arange(count) + 2, np.ones(count, np.int64), np.zeros(count, np.int64)
    tail = np.concatenate([costs.second + 2, costs.first + 2, ends, ones])
    head = np.concatenate([costs.first + 2, costs.second + 2, zeros, ends])
    capacity = np.concatenate([*costs.edge, more[1], more[0]])
    is_positive = capacity > 0
    key, inverse = np.unique(tail[is_positive] * (count + 2) + head[is_positive], return_inverse=True)
    summed = np.bincount(inverse, capacity[is_positive], len(key)).astype(np.float64)
    summed[summed >= above] = np.inf
    rounded, scale = _to_integers(summed, min(float(more[0].sum()), float(more[1].sum())))
    network = square(rounded, *np.divmod(key, count + 2), count + 2)
    value = 0.0
    if np.isfinite(scale):
        result = csgraph.maximum_flow(network, 1, 0, method="dinic")
        value = float(result.flow_value) / scale
        network = network - result.flow
        network.data[network.data < 0] = 0
        network.eliminate_zeros()
    reached = csgraph.breadth_first_order(network, 1, return_predecessors=False)
    side = np.zeros(count + 2, np.bool_)
    side[reached] = True
    return side[2:], float(least.sum()) + value


def _to_integers(capacity: Seconds, most: float) -> tuple[NDArray[np.int32], float]:
    if most < _LEAST:
        return np.ones(len(capacity), np.int32), float("inf")
    scale = _MAX_TOTAL_FLOW / most
    rounded = np.floor(np.minimum(capacity, 2 * most) * scale)  # exceeds any flow, so such an edge is never saturated
    rounded[np.isinf(capacity)] = _INFINITE
    return rounded.astype(np.int32), scale


_NEAR = 20_000
"""Maximum number of vertices for a single maximum flow."""
_WINDOW = 1_000
_SAMPLED = 8
_SETTLED = 16


def cut_of(costs: PairwiseCosts, above: float) -> tuple[Flags, float]:
    """Return vertex values of (nearly) minimal costs, and a lower bound; see `flow_cut`."""
    if costs.vertex.shape[1] <= _NEAR:
        return flow_cut(costs, above)
    window = _windows(costs)
    number = int(window.max()) + 1
    sample = np.isin(window, np.linspace(0, number - 1, _SAMPLED).astype(np.int64))
    low, high = _solve_chosen_windows(costs, window, sample, above)
    if _SETTLED * np.count_nonzero(low == high) >= len(low):
        return flow_cut(costs, above)
    every = np.ones(len(window), np.bool_)
    low, high = _solve_chosen_windows(costs, window, every, above)
    _, bound = flow_cut(_inside(costs, window, every), above)
    return _joined(costs, window, low, high, above), bound


def _windows(costs: PairwiseCosts) -> Indices:
    count = costs.vertex.shape[1]
    ends = np.concatenate([costs.first, costs.second]), np.concatenate([costs.second, costs.first])
    joined = square(np.ones(len(ends[0]), np.int8), *ends, count)
    window = np.empty(count, np.int64)
    window[flow_module().reverse_cuthill_mckee(joined, symmetric_mode=True)] = np.arange(count) // _WINDOW
    return window


def _inside(costs: PairwiseCosts, window: Indices, chosen: Flags, vertex: Seconds | None = None) -> PairwiseCosts:
    name = np.cumsum(chosen) - 1
    is_inner = (window[costs.first] == window[costs.second]) & chosen[costs.first]
    vertex_costs = costs.vertex if vertex is None else vertex
    return PairwiseCosts(
        vertex_costs[:, chosen], name[costs.first[is_inner]], name[costs.second[is_inner]], costs.edge[:, is_inner]
    )


def _solve_chosen_windows(costs: PairwiseCosts, window: Indices, chosen: Flags, above: float) -> tuple[Flags, Flags]:
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
        for state in (0, 1):  # `near_end` has value `state`, the decided end the other one
            paid = is_adjacent & (low[other] != bool(state))
            vertex[state] += np.bincount(number[near_end[paid]], seconds[state, paid], len(parts))
    between = still[costs.first] & still[costs.second] & (number[costs.first] != number[costs.second])
    chosen = _least(number[costs.first[between]], number[costs.second[between]], costs.edge[:, between], vertex, above)
    vertex_values = low.copy()
    vertex_values[still] = chosen[name]
    return vertex_values


def _least(first: Indices, second: Indices, edge: Seconds, vertex: Seconds, above: float) -> Flags:
    count = vertex.shape[1]
    rising = first < second
    key, inverse = np.unique(np.minimum(first, second) * count + np.maximum(first, second), return_inverse=True)
    paid = [np.bincount(inverse, np.where(rising, forward, two), len(key)) for forward, two in (edge, edge[::-1])]
    low, high = np.divmod(key, max(1, count))
    plan = plan_elimination(count, low, high)
    reduced = eliminate(plan, PairwiseCosts(vertex, low, high, np.stack(paid)))
    return values(plan, reduced, flow_cut(reduced.costs, above)[0])


_CACHED_PLANS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Directed flow network: vertices 0 (sink), 1 (source) and others."""

    tail: Indices
    head: Indices
    capacity: Seconds
    vertices: int


class Plans:
    """Cache of elimination plans; networks with equal edges share a plan."""

    def __init__(self) -> None:
        self._eliminations: dict[bytes, Elimination] = {}

    def of(self, count: int, first: Indices, second: Indices) -> Elimination:
        key = np.concatenate([[count], first, second]).tobytes()
        plan = self._eliminations.pop(key, None) or plan_elimination(count, first, second)
        if len(self._eliminations) == _CACHED_PLANS:
            del self._eliminations[next(iter(self._eliminations))]
        self._eliminations[key] = plan
        return plan


def minimum_cut(network: Network, plans: Plans) -> tuple[Flags, float]:
    """Return the vertices on the source's side (the fewest, up to rounding), and a lower bound of every cut.

    The bound is exact if elimination solves the cut. No edge may enter the source, leave the sink or connect them, and
    some cut must avoid all infinite edges. Zero-cost edges let networks share plans.
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


@dataclass(frozen=True, slots=True, eq=False)
class Surcharge:
    """Costs added to a cut that approximate launches."""

    value: Seconds
    """[2] Seconds per value that moves to this device."""
    producers: Indices
    consumers: Indices
    edge: Seconds
    """[2, edges] Seconds if the consumer is on this device and the producer is not."""
    atom: Seconds
    """[2, atoms] Seconds per atom on this device."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoWay:
    """Minimum cut of atoms between two devices."""

    second: Flags
    bound: float
    """Lower bound of all placements without launches, in seconds."""

    @property
    def rows(self) -> Rows:
        return self.second.astype(np.int8)


def two_way(
    topology: Topology,
    prices: Prices,
    pair: tuple[int, int],
    active: Flags | None = None,
    surcharge: Surcharge | None = None,
    plans: Plans | None = None,
) -> TwoWay | None:
    """Return the cheapest placement on a pair of devices if launches are free; None if none is feasible.

    Inactive atoms are on third devices; their values cross through host memory. Among minimum cuts, the one with fewest
    atoms on the second device is found. `pair` are rows of `prices`; `plans` caches cuts of the same graph.
    """
    taking_part = np.ones(topology.atoms, np.bool_) if active is None else active
    network, unary = _network(topology, prices, pair, taking_part, surcharge)
    forced = _forced(network, unary, taking_part)
    return None if forced is None else _solve(network, unary, forced, taking_part, plans or Plans())


def _network(
    topology: Topology, prices: Prices, pair: tuple[int, int], active: Flags, surcharge: Surcharge | None
) -> tuple[Network, Seconds]:
    rows = list(pair)
    unary = np.where(active, prices.run[rows], 0.0)
    inner = (topology.producer >= 0) & active[topology.producer] if topology.atoms else topology.producer >= 0
    is_active = active[topology.reader]
    leaves = topology.output.copy()
    leaves[topology.read_value[~is_active]] = True
    leaves &= inner
    _add(unary, topology.producer[leaves], prices.transfer_out[rows][:, leaves])
    value, reader = topology.read_value[is_active], topology.reader[is_active]
    through = prices.transfer_in[rows] + np.where(leaves, 0.0, prices.transfer_out[rows[::-1]])
    price = np.where(inner, through + (surcharge.value[:, None] if surcharge else 0.0), prices.transfer_in[rows])
    edges = _edges(topology, np.where(inner, topology.producer + 2, -1), value, reader + 2, price, unary)
    if surcharge is not None:
        unary += np.where(active, surcharge.atom, 0.0)
        both_active = active[surcharge.producers] & active[surcharge.consumers]
        predecessor, successor = surcharge.producers[both_active] + 2, surcharge.consumers[both_active] + 2
        edges += [
            (successor, predecessor, surcharge.edge[1, both_active]),
            (predecessor, successor, surcharge.edge[0, both_active]),
        ]
    tail, head, capacity = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    return Network(tail, head, capacity, topology.atoms + 2 + 2 * len(topology.values)), unary


def _add(unary: Seconds, atoms: Indices, seconds: Seconds) -> None:
    for row, more in zip(unary, seconds, strict=True):
        np.add.at(row, atoms, more)


def _edges(
    topology: Topology, maker: Indices, value: Indices, reader: Indices, price: Seconds, unary: Seconds
) -> list[tuple[Indices, Indices, Seconds]]:
    """Return edges with the costs of moving values to devices, counted once for all readers there.

    `maker` is the producing vertex of each value, -1 for the host. `value` and `reader` are the two ends of each read.
    `price` is [2, values] per target device. Costs that depend on one vertex only are added to `unary`.
    """
    readers = np.bincount(value, minlength=len(topology.values))
    lone = readers[value] == 1
    brought = lone & (maker[value] < 0)
    _add(unary, reader[brought] - 2, price[:, value[brought]])
    direct = lone & (maker[value] >= 0)
    lone_value, its = value[direct], reader[direct]
    edges = [(its, maker[lone_value], price[1, lone_value]), (maker[lone_value], its, price[0, lone_value])]
    many, their = value[~lone], reader[~lone]
    shared = np.flatnonzero(readers > 1)
    for device, offset in ((1, topology.atoms + 2), (0, topology.atoms + 2 + len(topology.values))):
        free = np.full(len(many), np.inf)
        payer = np.where(maker[shared] < 0, 1 - device, maker[shared])
        if device:
            edges += [(their, offset + many, free), (offset + shared, payer, price[1, shared])]
        else:
            edges += [(offset + many, their, free), (payer, offset + shared, price[0, shared])]
    is_produced = maker[many] >= 0
    edges.append(
        (their[is_produced], maker[many[is_produced]], np.zeros(int(is_produced.sum())))
    )  # a surcharge path may use this edge
    return edges


def _forced(network: Network, unary: Seconds, active: Flags) -> NDArray[np.int8] | None:
    """Return the side that infinite edges force on each vertex (1 source, 0 sink, -1 free), or None if infeasible."""
    csgraph = flow_module()
    banned = np.isinf(unary) & active
    if banned.all(axis=0).any():
        return None
    bound = np.isinf(network.capacity)
    to_source, to_sink = (np.flatnonzero(refused) + 2 for refused in banned)
    tail = np.concatenate([network.tail[bound], np.ones_like(to_source), to_sink])
    head = np.concatenate([network.head[bound], to_source, np.zeros_like(to_sink)])
    implied = square(np.ones(len(tail), np.int8), tail, head, network.vertices)
    side = np.full(network.vertices, -1, np.int8)
    side[csgraph.breadth_first_order(implied, 1, return_predecessors=False)] = 1
    if side[0] == 1:
        return None
    side[csgraph.breadth_first_order(implied.T.tocsr(), 0, return_predecessors=False)] = 0
    return side


def _solve(network: Network, unary: Seconds, side: NDArray[np.int8], active: Flags, plans: Plans) -> TwoWay:
    places = np.where(side >= 0, side, np.arange(network.vertices))
    atoms = places[2 : len(active) + 2]
    settled = active & (atoms < 2)
    base_cost = float(unary[atoms[settled], np.flatnonzero(settled)].sum())
    free = np.flatnonzero(active & (atoms >= 2))
    least = unary[:, free].min(axis=0)
    more = unary[:, free] - least
    ones, zeros = np.ones(len(free), np.int64), np.zeros(len(free), np.int64)
    tail = np.concatenate([places[network.tail], free + 2, ones])
    head = np.concatenate([places[network.head], zeros, free + 2])
    capacity = np.concatenate([network.capacity, more[1], more[0]])
    paid = (tail == 1) & (head == 0)
    base_cost += float(least.sum()) + float(capacity[paid].sum())
    edge_mask = (tail != head) & (tail != 0) & (head != 1) & ~paid
    side_of, value = minimum_cut(
        Network(tail[edge_mask], head[edge_mask], capacity[edge_mask], network.vertices), plans
    )
    second = active & np.where(atoms < 2, atoms == 1, side_of[2 : len(active) + 2])
    return TwoWay(second, base_cost + value)


def costliest_path(graph: Graph, rows: Rows, launch: Seconds) -> Indices:
    """Return the path of atoms with most launch seconds in a placement; among equal paths, prefer a long one."""
    labels, price = rows.tolist(), launch.tolist()
    seconds: list[float] = []
    lengths: list[int] = []
    earlier: list[int] = []
    for label, predecessors in zip(labels, graph.atom_predecessors, strict=True):
        launch_seconds = price[label]
        best, length, last = launch_seconds, 0, -1
        for predecessor in predecessors:
            reached = seconds[predecessor] + launch_seconds if labels[predecessor] != label else seconds[predecessor]
            if reached > best or (reached == best and lengths[predecessor] >= length):
                best, length, last = reached, lengths[predecessor] + 1, predecessor
        seconds.append(best)
        lengths.append(length)
        earlier.append(last)
    atom = max(range(len(labels)), key=lambda index: (seconds[index], lengths[index]))
    path = [atom]
    while earlier[path[-1]] >= 0:
        path.append(earlier[path[-1]])
    return np.array(path[::-1], np.int64)


def along_paths(paths: Sequence[Indices], launch: Seconds, atoms: int) -> Surcharge:
    """Return a surcharge for the launches along `paths`, averaged over them; `launch` is [2] seconds per device."""
    share = launch / len(paths)
    predecessors = np.concatenate([path[:-1] for path in paths])
    successors = np.concatenate([path[1:] for path in paths])
    starts = np.bincount([path[0] for path in paths], minlength=atoms).astype(np.float64)
    edge = np.repeat(share[:, None], len(predecessors), axis=1)
    return Surcharge(np.zeros(2), predecessors, successors, edge, share[:, None] * starts)


def everywhere(share: Seconds, atoms: int) -> Surcharge:
    """Return a surcharge on every value that enters one of the 2 devices, by device. Its cuts give no lower bound."""
    none = np.zeros(0, np.int64)
    return Surcharge(share, none, none, np.zeros((2, 0)), np.zeros((2, atoms)))
