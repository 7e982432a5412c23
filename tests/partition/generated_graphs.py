"""Graphs and prices by seed, of any size: what the laws of placement are tested on and its speed is measured with."""

import random

import numpy as np

from partition import Graph, Node
from partition.by_cost.pricing import Prices, topology_of


def chain(count, seed=0):
    """Each node reads the one before."""
    return linked([{index - 1} if index else set() for index in range(count)])


def branches(count, seed=0):
    """Diamonds of two to six branches, one after the other."""
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
    """Blocks of three nodes whose input is added to their output."""
    reads = [set()]
    while len(reads) < count:
        start = len(reads) - 1
        reads += [{start}, {start + 1}, {start + 2}, {start + 3, start}]
    return linked(reads[:count])


BLOCK = ((-1,), (0,), (0,), (0,), (1, 2), (4,), (3, 5), (6,), (-1, 7), (8,), (9,), (10,), (11,), (8, 12))
"""A transformer layer: norm, three projections, scores, softmax, context, projection, sum, norm, a network, sum; -1 is
what the layer before makes."""


def transformer(count, seed=0, kinds=False):
    """Equal layers; with `kinds`, node i of a layer has an op type of its own."""
    reads = [set()]
    while len(reads) < count:
        start = len(reads)
        reads += [{start + at if at >= 0 else start - 1 for at in block} for block in BLOCK]
    types = ["Embed", *(f"Op{(index - 1) % len(BLOCK)}" for index in range(1, count))] if kinds else None
    return linked(reads[:count], types)


def woven(count, seed=0, reach=30):
    """Any node may be read by several others, up to `reach` later; about one in twelve reads nothing but the input."""
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
"""Every generator takes the number of nodes and a seed."""


def linked(reads, types=None):
    """One node per entry; node i makes `v{i}` and reads what the nodes in `reads[i]` make, or the input `x`."""
    nodes = tuple(
        Node(f"n{at}", types[at] if types else "Sum", "", tuple(f"v{b}" for b in sorted(each)) or ("x",), (f"v{at}",))
        for at, each in enumerate(reads)
    )
    read = {before for each in reads for before in each}
    leaves = tuple(f"v{at}" for at in range(len(nodes)) if at not in read)
    return Graph(nodes, {}, frozenset(), ("x",), leaves)


def random_prices(graph, seed=0, *, devices=("npu", "cpu"), launch=1.0, supported=0.8, forbidden=0.0):
    """Lognormal seconds, accelerators half to sixteen times as fast; the last device is the host.

    Args:
        graph: the graph.
        seed: of every number.
        devices: labels; the last one takes everything, and values cross it for nothing.
        launch: seconds per launch of every other device, in terms of the median atom.
        supported: the share of atoms that each other device takes.
        forbidden: the share of values that may not cross to or from each other device.
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
