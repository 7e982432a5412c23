"""The cheapest placement on two devices where launches cost nothing: one minimum s-t cut.

Source: H. S. Stone, Multiprocessor Scheduling with the Aid of Network Flow Algorithms, IEEE TSE 3 (1977).

The source's side of the cut is the second device, the sink's side the first one. An atom is one vertex, joined to the
sink with what it costs on the second device more than on the first, or to the source with what it costs less. A value
crosses once per direction, whatever the number of its readers, so a value with several readers has one more vertex per
direction: it falls to the other side as soon as one reader does, and that cuts one edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partition.by_cost.maximum_flow import flow_module, square
from partition.by_cost.minimum_cut import Network, Plans, minimum_cut
from partition.by_cost.pricing import Prices
from partition.topology import Flags, Indices, Seconds, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Surcharge:
    """What is added to edges so that a cut knows something of launches."""

    value: Seconds
    """[2] For every value that passes to a device from the other one."""
    before: Indices
    """[edges] Atoms that others read from."""
    after: Indices
    """[edges] Those others."""
    edge: Seconds
    """[2, edges] Where the later atom is on this device and the earlier one is on the other."""
    atom: Seconds
    """[2, atoms] For an atom on this device."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoWay:
    """A minimum cut."""

    second: Flags
    """[atoms] On the second device; false for atoms that take no part."""
    bound: float
    """Seconds: no placement of the atoms that take part costs less, launches left out."""


def two_way(
    topology: Topology,
    prices: Prices,
    pair: tuple[int, int],
    active: Flags | None = None,
    surcharge: Surcharge | None = None,
    plans: Plans | None = None,
) -> TwoWay | None:
    """Return a cheapest placement of atoms on a pair of devices, launches left out; None where nothing is feasible.

    Atoms that take no part stand on third devices: what they make comes from the host's memory and what they read
    goes there. Of several cheapest cuts, the one with fewest atoms on the second device is found.

    Args:
        topology: the graph's.
        prices: columns in the topology's order.
        pair: rows of the first and the second device.
        active: [atoms] which atoms are placed; all of them if not given.
        surcharge: what else is paid.
        plans: what is known of the same graph's cuts; remembers more.
    """
    taking_part = np.ones(topology.atoms, np.bool_) if active is None else active
    network, unary = _network(topology, prices, pair, taking_part, surcharge)
    forced = _forced(network, unary, taking_part)
    return None if forced is None else _solve(network, unary, forced, taking_part, plans or Plans())


def _network(
    topology: Topology, prices: Prices, pair: tuple[int, int], active: Flags, surcharge: Surcharge | None
) -> tuple[Network, Seconds]:
    """Return the edges between atoms and values, and what every atom costs on either device [2, atoms]."""
    rows = list(pair)
    unary = np.where(active, prices.run[rows], 0.0)
    inner = (topology.producer >= 0) & active[topology.producer] if topology.atoms else topology.producer >= 0
    is_active = active[topology.reader]
    leaves = topology.output.copy()
    leaves[topology.read_value[~is_active]] = True
    leaves &= inner
    _add(unary, topology.producer[leaves], prices.out[rows][:, leaves])
    value, reader = topology.read_value[is_active], topology.reader[is_active]
    through = prices.into[rows] + np.where(leaves, 0.0, prices.out[rows[::-1]])
    price = np.where(inner, through + (surcharge.value[:, None] if surcharge else 0.0), prices.into[rows])
    edges = _edges(topology, np.where(inner, topology.producer + 2, -1), value, reader + 2, price, unary)
    if surcharge is not None:
        unary += np.where(active, surcharge.atom, 0.0)
        both_active = active[surcharge.before] & active[surcharge.after]
        predecessor, successor = surcharge.before[both_active] + 2, surcharge.after[both_active] + 2
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
    """Edges of values: what it costs that a value comes to a device, once for all of its readers there.

    Args:
        topology: the graph's.
        maker: [values] vertex of the producer, -1 where it takes no part and its value is brought in any case.
        value: [reads] values read by atoms that take part.
        reader: [reads] vertices of these atoms.
        price: [2, values] what it costs that the value comes to this device from elsewhere.
        unary: [2, atoms] gets what a single reader pays for a value in any case.
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
    )  # a path may lead there
    return edges


def _forced(network: Network, unary: Seconds, active: Flags) -> NDArray[np.int8] | None:
    """Return for every vertex 1 or 0 where it must be on the source's or the sink's side, else -1; None if on both.

    An edge without bound says: if the tail is on the source's side, then so is the head.
    """
    csgraph = flow_module()
    banned = np.isinf(unary) & active
    if banned.all(axis=0).any():
        return None
    bound = np.isinf(network.capacity)
    tail = np.concatenate([network.tail[bound], np.ones(int(banned[0].sum()), np.int64)])
    head = np.concatenate([network.head[bound], np.flatnonzero(banned[0]) + 2])
    tail = np.concatenate([tail, np.flatnonzero(banned[1]) + 2])
    head = np.concatenate([head, np.zeros(int(banned[1].sum()), np.int64)])
    implied = square(np.ones(len(tail), np.int8), tail, head, network.vertices)
    side = np.full(network.vertices, -1, np.int8)
    side[csgraph.breadth_first_order(implied, 1, return_predecessors=False)] = 1
    if side[0] == 1:
        return None
    side[csgraph.breadth_first_order(implied.T.tocsr(), 0, return_predecessors=False)] = 0
    return side


def _solve(network: Network, unary: Seconds, side: NDArray[np.int8], active: Flags, plans: Plans) -> TwoWay:
    """Cut what is left after forced vertices are merged with the source and the sink."""
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
