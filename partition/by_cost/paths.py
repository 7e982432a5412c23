"""Launches that no order of segments avoids: those along a path of the graph.

Along a path every atom reads from the one before it. Where the label changes, the later atom stands in a later
segment; segments have one label each; so the segments of a label are at least as many as its runs along the path. The
runs of a path cost one launch for its first atom and one for every edge at which the label changes. This is a sum over
edges, which a minimum cut can carry (`cuts.Surcharge`): a cut with the surcharge of one path is a lower bound
of the true cost. So is one with an average of such surcharges, the average of lower bounds being one.

Which paths? A cut answers with a placement, and the placement with the path that costs it most launches; the average of
all paths found so far goes into the next cut. In this game both averages tend to the best that either side can do.
Source: J. Robinson, An Iterative Method of Solving a Game, Annals of Mathematics 54 (1951).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partition.by_cost.cuts import Surcharge
from partition.graph import Graph
from partition.topology import Indices, Seconds


def costliest_path(graph: Graph, rows: Indices, launch: Seconds) -> Indices:
    """Return the atoms of a path whose runs cost most launches; of several, one with many atoms.

    Args:
        graph: the graph; it has an atom.
        rows: [atoms] the row of every atom's device.
        launch: [devices] seconds per launch.
    """
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
    """Return the average of what launches cost along `paths`.

    Args:
        paths: at least one.
        launch: [2] seconds per launch on the first and the second device.
        atoms: how many atoms the graph has.
    """
    share = launch / len(paths)
    predecessors = np.concatenate([path[:-1] for path in paths])
    successors = np.concatenate([path[1:] for path in paths])
    starts = np.bincount([path[0] for path in paths], minlength=atoms).astype(np.float64)
    edge = np.repeat(share[:, None], len(predecessors), axis=1)
    return Surcharge(np.zeros(2), predecessors, successors, edge, share[:, None] * starts)


def everywhere(share: Seconds, atoms: int) -> Surcharge:
    """Return a surcharge on every value that passes to a device from the other one; no lower bound.

    Args:
        share: [2] seconds per value that comes to the first and to the second device.
        atoms: how many atoms the graph has.
    """
    none = np.zeros(0, np.int64)
    return Surcharge(share, none, none, np.zeros((2, 0)), np.zeros((2, atoms)))
