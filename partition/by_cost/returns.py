"""Values that come back: made on a device and read there again, but by a later segment.

Such a value leaves the device and is brought to it again, unless it stays there, which costs less (`Prices.again`). A
cut sees two atoms on one device and nothing to pay; no cut
can, as paying for two atoms on *one* side makes cuts hard. So what returns cost a placement is charged to the atoms
that make and read such values, half each, and the next cut pays the average of what was charged so far. That finds
better placements, and no bound.
"""

from __future__ import annotations

import numpy as np

from partition.by_cost.pricing import Prices
from partition.graph import Graph
from partition.segments import cut
from partition.topology import Indices, Seconds, topology_of


def charges(graph: Graph, prices: Prices, rows: Indices) -> Seconds:
    """Return what returning values cost, per atom and device: [2, atoms] seconds.

    Args:
        graph: the graph.
        prices: of two devices, finite, columns in the order of the graph's topology.
        rows: [atoms] the row of every atom's device.
    """
    topology = topology_of(graph)
    segments = cut(graph, [prices.devices[row] for row in rows.tolist()], host=prices.host).segments
    home = np.zeros(topology.atoms, np.int64)
    for at, segment in enumerate(segments):
        home[list(segment.atoms)] = at
    maker, reader = topology.producer[topology.read_value], topology.reader
    is_produced = maker >= 0
    leaves = topology.output.copy()
    leaves[topology.read_value[is_produced & (rows[maker] != rows[reader])]] = True
    returns = is_produced & (rows[maker] == rows[reader]) & (home[maker] != home[reader])
    value, maker, reader = topology.read_value[returns], maker[returns], reader[returns]
    row = rows[reader]
    into, out = prices.into[row, value], prices.out[row, value]
    if prices.again is not None:
        repeat_seconds = prices.again[row, value]
        into, out = (np.where(np.isfinite(repeat_seconds), repeat_seconds, seconds) for seconds in (into, out))
    _, group, sharing = np.unique(value * len(segments) + home[reader], return_inverse=True, return_counts=True)
    leaving = np.where(leaves[value], 0.0, out / np.bincount(value)[value])
    half = (into / sharing[group] + leaving) / 2
    atom_charges = np.zeros((2, topology.atoms))
    np.add.at(atom_charges, (row, maker), half)
    np.add.at(atom_charges, (row, reader), half)
    return atom_charges
