"""Seeded graphs and prices of any size, for laws and benchmarks of placement."""

import random

import numpy as np

from partition import Graph, Node
from partition.by_cost.pricing import Prices, topology_of


def chain(count, seed=0):
    return linked([{index - 1} if index else set() for index in range(count)])


def branches(count, seed=0):
    """Return a chain of diamonds of two to six branches."""
    source = random.Random(seed)
    reads, last = [], None
    while len(reads) < count:
        width = min(source.randint(2, 6), count - len(reads))
        first = len(reads)
        reads += [{last} if last is not None else set() for _ in range(width)]
        reads.append(set(range(first, first + width)))
        last = len(reads) - 1
    return linked(reads[:count])


def residual(count, seed=0):
    """Return blocks of three nodes with their input added to their output."""
    reads = [set()]
    while len(reads) < count:
        start = len(reads) - 1
        reads += [{start}, {start + 1}, {start + 2}, {start + 3, start}]
    return linked(reads[:count])


BLOCK = ((-1,), (0,), (0,), (0,), (1, 2), (4,), (3, 5), (6,), (-1, 7), (8,), (9,), (10,), (11,), (8, 12))
"""A transformer layer: norm, three projections, scores, softmax, context, projection, sum, norm, a network, sum; -1 is
the previous layer.
"""


def transformer(count, seed=0, kinds=False):
    """Return equal layers; with `kinds`, each node of a layer has its own op type."""
    reads = [set()]
    while len(reads) < count:
        start = len(reads)
        reads += [{start + at if at >= 0 else start - 1 for at in block} for block in BLOCK]
    types = ["Embed", *(f"Op{(index - 1) % len(BLOCK)}" for index in range(1, count))] if kinds else None
    return linked(reads[:count], types)


def woven(count, seed=0, reach=30):
    """Return a graph of nodes with several readers up to `reach` later; one in twelve reads only the input."""
    source = random.Random(seed)
    reads = []
    for index in range(count):
        number = source.choice((0, *(1,) * 5, *(2,) * 4, 3, 3))
        reads.append({max(0, index - source.randint(1, reach)) for _ in range(number)} - {index})
    return linked(reads)


FAMILIES = {
    "chain": chain,
    "branches": branches,
    "residual": residual,
    "transformer": transformer,
    "woven": woven,
}
"""Generators; each takes the number of nodes and a seed."""


def linked(reads, types=None):
    """Return one node per entry; node i produces `v{i}` and reads the nodes in `reads[i]`, or the input `x`."""
    nodes = tuple(
        Node(f"n{at}", types[at] if types else "Sum", "", tuple(f"v{b}" for b in sorted(each)) or ("x",), (f"v{at}",))
        for at, each in enumerate(reads)
    )
    read = {before for each in reads for before in each}
    leaves = tuple(f"v{at}" for at in range(len(nodes)) if at not in read)
    return Graph(nodes, {}, frozenset(), ("x",), leaves)


def random_prices(graph, seed=0, *, devices=("npu", "cpu"), launch=1.0, supported=0.8, forbidden=0.0):
    """Return lognormal seconds, with accelerators half to sixteen times as fast; the last device is the host.

    Args:
        graph: the graph.
        seed: seed of every number.
        devices: labels; the last device supports everything, and its transfers are free.
        launch: seconds per launch of every other device, relative to the median atom.
        supported: share of atoms that each other device supports.
        forbidden: share of values that may not cross to or from each other device.
    """
    source = np.random.default_rng(seed)
    topology = topology_of(graph)
    others, atoms, values = len(devices) - 1, topology.atoms, len(topology.values)
    host = source.lognormal(0, 1, atoms)
    run = np.vstack([host / 2 ** source.uniform(-1, 4, (others, atoms)), host[None]])
    run[:-1][source.random((others, atoms)) >= supported] = np.inf
    into, out = np.zeros((2, len(devices), values))
    for rows in (into, out):
        rows[:-1] = source.lognormal(-0.3, 1, values)
        rows[:-1][source.random((others, values)) < forbidden] = np.inf
    launches = np.array([launch] * others + [0.0])
    return Prices(tuple(devices), devices[-1], run, into, out, launches, topology.values)
