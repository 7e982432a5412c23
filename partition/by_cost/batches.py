"""The costs of many placements on two devices at once: what a search among neighbors pays for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partition.by_cost.pricing import Prices
from partition.graph import Graph
from partition.topology import Flags, Indices, Seconds, Topology, topology_of

Rows = NDArray[np.int8]
Levels = NDArray[np.int32]


def price_many(graph: Graph, prices: Prices, rows: Rows) -> Seconds:
    """Return what each of many placements costs, with the segments that `partition.segments.cut` finds.

    The recurrence of levels is walked once, atom by atom, for all placements and for both starts; everything else is
    done for all values at once. Per placement this is some twenty times as fast as `price`, once
    there are a few dozen.

    Args:
        graph: the graph.
        prices: of two devices, columns in the order of the graph's topology.
        rows: [atoms, placements] for every atom the row of its device, 0 or 1.

    Returns:
        [placements] seconds.
    """
    topology = topology_of(graph)
    count = rows.shape[1]
    if not topology.atoms:
        return np.zeros(count)
    home, launches = _better_start(graph, prices, rows)
    seconds: Seconds = np.where(rows == 1, prices.run[1][:, None], prices.run[0][:, None]).sum(axis=0) + launches
    return seconds + _transfers(topology, prices, rows, home)


def _better_start(graph: Graph, prices: Prices, rows: Rows) -> tuple[Levels, Seconds]:
    """Return the level of every atom [atoms, placements] in the better of both starts, and seconds of launches."""
    count = rows.shape[1]
    levels = _levels(graph, rows)
    empty = levels.min(axis=0) > 0
    deepest = levels.max(axis=0)
    even, odd = deepest // 2 + 1 - empty, (deepest + 1) // 2
    segments = even + odd
    first = np.repeat(np.array([0, 1]), count)
    of_row = np.where(first == 0, [even, odd], [odd, even])
    free = np.tile(rows[0] if prices.host not in prices.devices else prices.devices.index(prices.host), 2)
    free = np.broadcast_to(free, (2 * count,)) if free.size == 2 * count else np.full(2 * count, free[0])
    foreign = np.where(free == 0, of_row[1], of_row[0])
    key = (segments * (int(segments.max()) + 1) + foreign) * 2 + (first != np.tile(rows[0], 2))
    second = key[count:] < key[:count]
    launched = np.where(second, of_row[:, count:], of_row[:, :count])
    return np.where(second, levels[:, count:], levels[:, :count]), prices.launch @ launched


def _levels(graph: Graph, rows: Rows) -> Levels:
    """Levels for a start with row 0, then for one with row 1: [atoms, 2 * placements]; parity tells the row."""
    levels: Levels = np.concatenate([rows, 1 - rows], axis=1).astype(np.int32)
    parity = levels.copy()
    for atom, predecessors in enumerate(graph.atom_predecessors):
        level = levels[atom]
        for predecessor in predecessors:
            earlier = levels[predecessor]
            np.maximum(level, earlier + ((earlier ^ parity[atom]) & 1), out=level)
    return levels


def _transfers(topology: Topology, prices: Prices, rows: Rows, home: Levels) -> Seconds:
    is_produced = topology.producer >= 0
    maker = np.where(is_produced[:, None], home[topology.producer], -1)
    leaves = np.repeat(topology.output[:, None], rows.shape[1], axis=1)
    stays = np.zeros_like(leaves)
    seconds = np.zeros(rows.shape[1])
    for values, readers in readers_by_number(topology):
        homes = home[readers]
        order = np.argsort(homes, axis=1, kind="stable")
        homes = np.take_along_axis(homes, order, axis=1)
        crosses = homes != maker[values][:, None]
        crosses[:, 1:] &= homes[:, 1:] != homes[:, :-1]
        on_second = np.take_along_axis(rows[readers], order, axis=1) == 1
        into = _by_row(prices.into, values, on_second)
        away = crosses
        if prices.again is not None:
            repeat_seconds = _by_row(prices.again, values, on_second)
            made_on_second = (rows[topology.producer[values]] == 1)[:, None]
            at_home = is_produced[values][:, None, None] & (made_on_second == on_second)
            is_present = np.isfinite(repeat_seconds) & (at_home | _came_before(crosses, on_second))
            into = np.where(is_present, repeat_seconds, into)
            away = crosses & ~(is_present & at_home)
            stays[values] |= (crosses & is_present & at_home).any(axis=1)
        leaves[values] |= away.any(axis=1)
        seconds += np.where(crosses, into, 0.0).sum(axis=(0, 1))
    every = np.arange(len(is_produced))
    producer_row = rows[topology.producer] == 1
    out = _by_row(prices.out, every, producer_row)
    seconds += np.where(leaves & is_produced[:, None], out, 0.0).sum(axis=0)
    if prices.again is not None:
        repeat_seconds = _by_row(prices.again, every, producer_row)
        seconds += np.where(stays & ~leaves & is_produced[:, None], repeat_seconds, 0.0).sum(axis=0)
    return seconds


def _by_row(part: Seconds, values: Indices, on_second: Flags) -> Seconds:
    """Prices of values on the device of their row: [values, ..., placements]."""
    first, second = (row[values].reshape(-1, *[1] * (on_second.ndim - 1)) for row in part)
    seconds: Seconds = np.where(on_second, second, first)
    return seconds


def _came_before(crosses: Flags, on_second: Flags) -> Flags:
    """Which readers [values, readers, placements] have one before them that it was brought to on their row."""
    has_earlier = np.zeros_like(crosses)
    for row in (on_second, ~on_second):
        brought = np.cumsum(crosses & row, axis=1) - (crosses & row) > 0
        has_earlier |= brought & row
    return has_earlier


def readers_by_number(topology: Topology) -> list[tuple[Indices, Indices]]:
    """Return, per number of readers n, the values [count] that have n and these readers [count, n]."""
    values, first, number = np.unique(topology.read_value, return_index=True, return_counts=True)
    groups = []
    for size in np.unique(number):
        chosen: Flags = number == size
        groups.append((values[chosen], topology.reader[first[chosen][:, None] + np.arange(size)]))
    return groups
