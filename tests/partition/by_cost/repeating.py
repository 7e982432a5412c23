"""Graphs of repeated random blocks, with prices that depend only on the position in the block."""

import random

import numpy as np

from partition.by_cost.pricing import Prices, topology_of
from partition.by_cost.repeats import find_blocks
from tests.partition.generated_graphs import linked


def repeating(layers, size, seed=0, outside=1):
    """Return `layers` equal blocks of `size` nodes, with chains of `outside` nodes at both ends."""
    source = random.Random(seed)
    block = [[-1], *([at - 1] for at in range(1, size))]
    for at, reads in enumerate(block):
        if source.random() < 0.6:
            reads.append(source.randint(max(-2, -size), at - 1))
    reads = [{at - 1} if at else set() for at in range(outside)]
    for _ in range(layers):
        start = len(reads)
        reads += [{max(0, start + before) for before in each} for each in block]
    reads += [{len(reads) + at - 1} for at in range(outside)]
    inside = [f"Op{at % size}" for at in range(layers * size)]
    return linked(reads, [*(f"Pre{at}" for at in range(outside)), *inside, *(f"Post{at}" for at in range(outside))])


def types(graph):
    return [node.op_type for node in graph.nodes]


def blocks_of(graph):
    return find_blocks(graph, types(graph))


def kind_prices(graph, seed=0, *, devices=("npu", "cpu"), launch=1.0, supported=0.8, transfer=1.0):
    """Return `random_prices` that are equal for nodes of one op type and their outputs; `transfer` scales transfers."""
    source = np.random.default_rng(seed)
    kinds = {kind: at for at, kind in enumerate(sorted(set(types(graph))))}
    others = len(devices) - 1
    host = source.lognormal(0, 1, len(kinds))
    run = np.vstack([host / 2 ** source.uniform(-1, 4, (others, len(kinds))), host[None]])
    run[:-1][source.random((others, len(kinds))) >= supported] = np.inf
    crossing = source.lognormal(-0.3, 1, (2, len(kinds))) * transfer
    first = np.array([kinds[graph.nodes[nodes[0]].op_type] for nodes in graph.atoms])
    values = topology_of(graph).values
    results = [kinds[graph.nodes[graph.producer[name]].op_type] if name in graph.producer else 0 for name in values]
    into, out = np.zeros((2, len(devices), len(values)))
    into[:-1], out[:-1] = crossing[0][results], crossing[1][results]
    launches = np.array([launch] * others + [0.0])
    return Prices(tuple(devices), devices[-1], run[:, first].copy(), into, out, launches, values)
