"""Values that may not cross, as a price that no placement pays which can run: search finds its way out by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partition.by_cost.batches import Rows, price_many
from partition.by_cost.pricing import Prices, price
from partition.graph import Graph
from partition.topology import Seconds, topology_of


def penalized(graph: Graph, prices: Prices) -> Prices:
    """Return prices with a finite one, above the cost of any placement that can run, for what may not cross.

    Args:
        graph: the graph.
        prices: columns in the order of the graph's topology.
    """
    forbidden = np.isinf(prices.into).any() or np.isinf(prices.out).any()
    if not forbidden:
        return prices
    topology = topology_of(graph)
    readers = np.bincount(topology.read_value, minlength=len(topology.values))
    run, into, out = (np.where(np.isinf(part), 0.0, part).max(axis=0) for part in (prices.run, prices.into, prices.out))
    most = run.sum() + (into * readers + out).sum() + prices.launch.max() * topology.atoms
    above = 1.0 + 2.0 * float(most)
    return replace(
        prices,
        into=np.where(np.isinf(prices.into), above, prices.into),
        out=np.where(np.isinf(prices.out), above, prices.out),
    )


def placement_costs(graph: Graph, prices: Prices, placements: Sequence[Rows]) -> Seconds:
    """Return what each of `placements` costs, all at once where there are two devices.

    Args:
        graph: the graph.
        prices: columns in the order of the graph's topology.
        placements: for every atom the row of its device.

    Returns:
        [placements] seconds, as `partition.by_cost.pricing.price` adds them up.
    """
    if len(prices.devices) == 2:
        return price_many(graph, prices, np.stack(placements, axis=1))
    labels = prices.devices
    return np.array([price(graph, prices, [labels[row] for row in rows.tolist()]) for rows in placements])
