"""Blocks that repeat, such as the layers of a transformer, and placements that treat all repeats alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partition.graph import Graph
from partition.topology import Flags, Indices, Seconds

PlacementRows = NDArray[np.int8]
_GRAMS = 8
"""Neighborhoods of 1, 2, 4, ... nodes, so many of them, are looked at to find how far repeats are apart."""
_DISTANCES = 3
"""Distances per size of neighborhood that are tried."""
_PATTERNS = 8
"""Repeats whose placement is tried for all others."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """Runs of nodes that follow each other and are wired alike."""

    starts: tuple[int, ...]
    """Position of the first node of every repeat, ascending; at least two."""
    length: int
    """Nodes of one repeat."""


def find_blocks(graph: Graph, hashes: Sequence[Hashable], least: int = 0) -> tuple[Blocks, ...]:
    """Return runs of nodes that repeat without a gap, those that cover most nodes first; none overlap.

    Two nodes `length` apart are alike if their hashes are equal and each of their inputs comes from nodes that are
    `length` apart as well, or from the same node, or from none, and so in all repeats. A run repeats as long as its
    nodes are alike. How far repeats are apart is told by neighborhoods of nodes: the distances at which one occurs
    again most often are tried. The time is that of sorting.

    Args:
        graph: the graph.
        hashes: per node, what makes two nodes the same if their inputs are: op type, attributes, shapes, prices.
        least: nodes that a run has to cover with all of its repeats; looking for few long ones is faster.
    """
    names: dict[Hashable, int] = {}
    codes = np.array([names.setdefault(node_hash, len(names)) for node_hash in hashes], np.int64)
    runs: list[tuple[int, Blocks]] = []
    distances = sorted(set(_distances(codes, least)))
    producers, first = _reads(graph) if distances else (codes, codes)
    for distance in distances:
        runs += [(len(run.starts) * run.length, run) for run in _runs(codes, producers, first, distance, least)]
    is_covered = np.zeros(len(codes), np.bool_)
    blocks = []
    for covered, run in sorted(runs, key=lambda candidate: (-candidate[0], candidate[1].length, candidate[1].starts)):
        span = slice(run.starts[0], run.starts[0] + covered)
        if covered >= least and not is_covered[span].any():
            is_covered[span] = True
            blocks.append(run)
    return tuple(blocks)


def _reads(graph: Graph) -> tuple[Indices, Indices]:
    """The producing node of every input of every node, -1 where none makes it, and where each node's inputs begin."""
    producers = [graph.producer.get(name, -1) for node in graph.nodes for name in node.reads]
    counts = [len(node.reads) for node in graph.nodes]
    return np.array(producers, np.int64), np.cumsum([0, *counts])


def _distances(codes: Indices, least: int) -> Iterator[int]:
    """Distances at which neighborhoods occur again, leaving out those that no run of `least` nodes could have.

    A run loses one distance and one neighborhood at its end, so in its half at least something occurs again.
    """
    grams = codes
    for level in range(_GRAMS):
        if len(grams) < 2:
            return
        order = np.argsort(grams, kind="stable")
        steps = np.diff(grams[order]) != 0
        repeat_distances = np.diff(order)[~steps]
        if not len(repeat_distances):
            return
        size = 2**level
        counts = np.bincount(repeat_distances)
        often = np.argsort(-counts, kind="stable")[:_DISTANCES]
        yield from (int(distance) for distance in often if counts[distance] and 2 * (counts[distance] + size) >= least)
        dense = np.empty_like(grams)
        dense[order] = np.concatenate([[0], np.cumsum(steps)])
        grams = dense[:-size] * len(dense) + dense[size:]


def _runs(codes: Indices, producers: Indices, first: Indices, distance: int, least: int) -> Iterator[Blocks]:
    """Runs of nodes that are each alike to the node `distance` further on, where there are so many at least."""
    alike, kinds = _equal_nodes(codes, producers, first, distance)
    flags = np.concatenate([[False], alike, [False]])
    edges = np.flatnonzero(flags[1:] != flags[:-1]).reshape(-1, 2)
    edges = edges[edges[:, 1] - edges[:, 0] >= max(distance, least - distance)]
    turns = np.flatnonzero(kinds[distance:] != kinds[:-distance]) + distance
    for start, end in edges.tolist():
        inside = turns[np.searchsorted(turns, start) : np.searchsorted(turns, end)].tolist()
        for turn in (*inside, end):
            if turn == end or turn >= start + distance:
                yield from _repeats(start, turn, distance)
                start = turn - distance + 1


def _repeats(start: int, end: int, distance: int) -> Iterator[Blocks]:
    if end - start >= distance:
        yield Blocks(tuple(start + distance * at for at in range((end - start) // distance + 1)), distance)


def _equal_nodes(codes: Indices, producers: Indices, first: Indices, distance: int) -> tuple[Flags, Seconds]:
    """Per node, whether it is alike to the one `distance` further on, and which of its inputs come from the same node.

    The latter is the sum of a number per input, the fractional parts of multiples of the golden ratio: equal sums mean
    equal sets for all practical purposes.
    """
    counts = np.diff(first)
    same: Flags = (codes[:-distance] == codes[distance:]) & (counts[:-distance] == counts[distance:])
    nodes = np.flatnonzero(same)
    number = counts[nodes]
    node = np.repeat(nodes, number)
    place = np.arange(len(node)) - np.repeat(np.cumsum(number) - number, number)
    producer, repeat_producer = producers[first[node] + place], producers[first[node + distance] + place]
    same[node[(repeat_producer != producer) & ((producer < 0) | (repeat_producer != producer + distance))]] = False
    weight = np.where(repeat_producer == producer, (place + 1) * _GOLDEN % 1.0, 0.0)
    return same, np.bincount(node, weight, len(same)).astype(np.float64)


def uniform_placements(graph: Graph, rows: PlacementRows, blocks: Sequence[Blocks]) -> Iterator[PlacementRows]:
    """Yield `rows` with the placement of one repeat given to all repeats, and to all but the first and the last.

    Nothing is yielded of repeats that are placed alike already.

    Args:
        graph: the graph.
        rows: for every atom the row of its device.
        blocks: of the graph.
    """
    atom_of = np.array(graph.atom_of, np.int64)
    for run in blocks:
        atoms = atom_of[np.array(run.starts)[:, None] + np.arange(run.length)]
        if (rows[atoms] == rows[atoms[0]]).all():
            continue
        patterns, counts = np.unique(rows[atoms], axis=0, return_counts=True)
        for pattern in patterns[np.argsort(-counts, kind="stable")[:_PATTERNS]]:
            for chosen in (atoms, atoms[1:-1]):
                changed = rows.copy()
                changed[chosen] = pattern
                yield changed
