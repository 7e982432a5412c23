"""Who makes and who reads each value, as arrays: what pricing and placement walk over instead of names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partition.graph import Graph

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Seconds = NDArray[np.float64]
_KEPT = "topology"
"""Where a graph keeps what was derived of it, beside its own cached properties; `Graph.revalued` shares those."""


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """The values of a graph in one order, and the atoms that make and read them."""

    values: tuple[str, ...]
    """Every value that a node makes or reads, constants left out, in order of first appearance."""
    producer: Indices
    """[values] The atom that makes it; -1 for what is there before the run."""
    output: Flags
    """[values] A node makes it and it is an output of the model."""
    read_value: Indices
    """[reads] Values that some atom reads which does not make them, each with each such reader once, ascending."""
    reader: Indices
    """[reads] That atom."""
    atoms: int
    """How many atoms the graph has."""


def topology_of(graph: Graph) -> Topology:
    """Return the topology of `graph`, derived once and kept with it."""
    cached_topology = graph.__dict__.get(_KEPT)
    if isinstance(cached_topology, Topology):
        return cached_topology
    topology = _derive(graph)
    graph.__dict__[_KEPT] = topology
    return topology


def _derive(graph: Graph) -> Topology:
    position: dict[str, int] = {}
    producer: list[int] = []
    reads: list[int] = []
    for atom, node in zip(graph.atom_of, graph.nodes, strict=True):
        for name in node.reads:
            if name not in graph.constants:
                at = position.setdefault(name, len(position))
                if at == len(producer):
                    producer.append(-1)
                if producer[at] != atom:
                    reads.append(at * len(graph.atoms) + atom)
        for name in node.outputs:
            if name:
                position.setdefault(name, len(position))
                producer.append(atom)
    names = tuple(position)
    producers = np.array(producer, np.int64)
    output_names = frozenset(graph.outputs)
    output = np.fromiter((name in output_names for name in names), np.bool_, len(names)) & (producers >= 0)
    value, reader = np.divmod(np.unique(np.array(reads, np.int64)), max(1, len(graph.atoms)))
    return Topology(names, producers, output, value, reader, len(graph.atoms))
