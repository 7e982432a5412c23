"""A graph with few of its repeats left: what is solved for these holds for all.

Layers that are wired and priced alike are placed alike by the cheapest placements, but for the first and the last ones.
So a solver need not see all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from partition.by_cost.batches import Rows
from partition.by_cost.blocks import Blocks
from partition.by_cost.pricing import Prices
from partition.graph import Graph, Node
from partition.topology import Flags, Indices, Seconds, topology_of

_ALIKE = 0.01
"""Prices of repeats that differ by a smaller share count as alike."""

_KEPT = 2
"""Repeats that stand for the others: two, as two may take turns."""


@dataclass(frozen=True, slots=True, eq=False)
class FoldedGraph:
    """A short graph that stands for a long one."""

    graph: Graph
    """With the first and the last repeats of every run and a few between, which stand for those that are left out."""
    prices: Prices
    """Of the short graph; every repeat costs what it costs, whatever the number that it stands for: so runs, transfers
    and launches keep their proportion."""
    home: Indices
    """[atoms of the long graph] The atom of the short graph that stands for it."""
    repeats: tuple[int, ...]
    """Per run, how many repeats it has, first and last ones included."""

    def spread(self, rows: Rows) -> Rows:
        """Return for every atom of the long graph the row of its device, from those of the short one."""
        long_rows: Rows = rows[self.home]
        return long_rows

    def gathered(self, rows: Rows) -> Rows:
        """Return for every atom of the short graph the row that most atoms have which it stands for."""
        counts = np.zeros((len(self.graph.atoms), int(rows.max(initial=0)) + 1), np.int64)
        np.add.at(counts, (self.home, rows), 1)
        short_rows: Rows = counts.argmax(axis=1).astype(np.int8)
        return short_rows


@dataclass(frozen=True, slots=True)
class _Span:
    """Repeats that are alike, the first and the last one left out."""

    start: int
    """Position of the first node."""
    length: int
    """Nodes of one repeat."""
    between: int
    """Repeats between the first and the last one."""
    repeats: int
    """Repeats that are alike."""


def fold(
    graph: Graph, prices: Prices, blocks: Sequence[Blocks], representative_count: int = _KEPT
) -> FoldedGraph | None:
    """Return a short graph that stands for `graph`; None where too little repeats.

    1. Of a run of repeats, the first, the last and `representative_count` between are kept, and everything outside.
    2. What reads a value of a repeat that is left out reads that of the one that stands for it.
    3. A run ends where atoms, what may run or cross where, or prices differ by more than 1 %: an odd layer is kept.
    4. Where atoms, or reads from further than one repeat back, cross the border between repeats, another position
       within the repeat is the border.

    Args:
        graph: the graph.
        prices: columns in the order of the graph's topology.
        blocks: of the graph (`partition.by_cost.blocks.find_blocks`).
        representative_count: repeats that stand for all between the first and the last one.
    """
    graph_facts = _Known.of(graph, prices)
    spans = [span for run in blocks for span in _spans(graph_facts, run, representative_count)]
    if not spans:
        return None
    stands = np.arange(len(graph.nodes))
    for span in spans:
        inside = np.arange(span.length * span.between)
        stands[span.start + inside] = span.start + inside % (span.length * representative_count)
    renamed = _renamed(graph, stands)
    short, home = _short(graph, stands, renamed)
    return FoldedGraph(short, _prices(short, prices, home), home, tuple(span.repeats for span in spans))


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is asked of the graph for every run, worked out once."""

    graph: Graph
    prices: Prices
    atom_of: Indices
    """[nodes]"""
    ends: Indices
    """[atoms, 2] The first and the last node."""
    wide: Indices
    """[atoms of several nodes, 2] The same of these, by the first node."""
    column: dict[str, int]
    """Of a value, in the prices."""
    output: Seconds
    """[values] 1 for what the graph gives back."""

    @classmethod
    def of(cls, graph: Graph, prices: Prices) -> _Known:
        """Work it out."""
        ends = np.array([(min(group), max(group)) for group in graph.atoms], np.int64).reshape(-1, 2)
        wide = ends[ends[:, 0] < ends[:, 1]]
        return cls(
            graph=graph,
            prices=prices,
            atom_of=np.array(graph.atom_of, np.int64),
            ends=ends,
            wide=wide[np.argsort(wide[:, 0], kind="stable")],
            column={name: at for at, name in enumerate(prices.values)},
            output=topology_of(graph).output.astype(np.float64),
        )


def _spans(graph_facts: _Known, run: Blocks, representative_count: int) -> Iterator[_Span]:
    """Repeats that may be left out, the few that stand for them included."""
    length = run.length
    if len(run.starts) < representative_count + 3:
        return
    border = _border(graph_facts, run)
    if border is None:
        return
    start = run.starts[0] + border
    count = len(run.starts) - (border > 0)
    same = _alike(graph_facts, start, length, count)
    breaks = [0, *(np.flatnonzero(~same) + 1).tolist(), count]
    for first, end in pairwise(breaks):
        middle = (end - first - 2) // representative_count * representative_count
        if middle > representative_count:
            yield _Span(start + (end - 1 - middle) * length, length, middle, end - first)


def _border(graph_facts: _Known, run: Blocks) -> int | None:
    """Return where repeats best begin, counted from the run's first node; None if reads go further back than a repeat.

    Atoms that would be cut are counted per position; reads that would reach two repeats back rule a position out.
    """
    graph, start, length = graph_facts.graph, run.starts[0], run.length
    end = start + length * len(run.starts)
    crossing = np.zeros(length + 1, np.int64)
    inside = slice(*np.searchsorted(graph_facts.wide[:, 0], (start, end)).tolist())
    for low, high in graph_facts.wide[inside].tolist():
        if high < end and high - low < length:
            _mark(crossing, low - start + 1, high - start + 1, length, 1)
    for node in range(run.starts[-2], run.starts[-2] + length):
        for read_name, other in zip(graph.nodes[node].reads, graph.nodes[node + length].reads, strict=False):
            maker = graph.producer.get(read_name, -1)
            back = node - maker
            if maker < 0 or graph.producer.get(other, -1) == maker or back <= length:
                continue
            if back >= 2 * length:
                return None
            _mark(crossing, maker - start + 1, node - length - start + 1, length, len(graph.nodes))
    counts = np.cumsum(crossing)[:length]
    best = int(counts.argmin())
    return None if counts[best] >= len(graph.nodes) else best


def _mark(crossing: Indices, first: int, end: int, length: int, weight: int) -> None:
    """Add to the differences of positions first, ..., end - 1, modulo the length."""
    if first == end:
        return
    low, high = first % length, (end - 1) % length + 1
    crossing[low] += weight
    crossing[high] -= weight
    if low >= high:
        crossing[0] += weight


def _alike(graph_facts: _Known, start: int, length: int, count: int) -> Flags:
    """[count - 1] Whether each repeat has the atoms and the prices of the one before it."""
    nodes = np.arange(start, start + length * count)
    ends = graph_facts.ends[graph_facts.atom_of[nodes]]
    within = (ends - (nodes - (nodes - start) % length)[:, None]).reshape(count, length, 2)
    is_contained: Flags = np.logical_and.reduce((within >= 0) & (within < length), axis=(1, 2))
    same = (within[1:] == within[:-1]).all(axis=(1, 2)) & is_contained[1:] & is_contained[:-1]
    cost = _node_prices(graph_facts, start, length * count).reshape(-1, count, length)
    alike: Flags = same & np.isclose(cost[:, 1:], cost[:, :-1], rtol=_ALIKE, atol=0.0).all(axis=(0, 2))
    return alike


def _node_prices(graph_facts: _Known, start: int, count: int) -> Seconds:
    """[prices, count] What nodes cost on each device, what their values do, and how many of these are outputs."""
    graph, prices, column = graph_facts.graph, graph_facts.prices, graph_facts.column
    nodes = graph.nodes[start : start + count]
    node_indices: list[int] = []
    values: list[int] = []
    for at, node in enumerate(nodes):
        columns = [column[name] for name in node.outputs if name]
        columns += [column[name] for name in node.reads if name in column and name not in graph.producer]
        node_indices += [at] * len(columns)
        values += columns
    crossing = np.concatenate([prices.into[:, values], prices.out[:, values], graph_facts.output[None, values]])
    summed = [np.bincount(np.array(node_indices, np.int64), row, count) for row in crossing]
    run = prices.run[:, graph_facts.atom_of[start : start + count]]
    return np.concatenate([run, np.stack(summed)])


def _renamed(graph: Graph, stands: Indices) -> dict[str, str]:
    """For every value that goes with a repeat that is left out, the one that stands for it."""
    substitutes: dict[str, str] = {}
    for node in np.flatnonzero(stands != np.arange(len(stands))).tolist():
        removed_node, substitute_node = graph.nodes[node], graph.nodes[stands[node]]
        substitutes.update(zip(removed_node.outputs, substitute_node.outputs, strict=False))
        for name, other in zip(removed_node.reads, substitute_node.reads, strict=False):
            if name != other and name not in graph.producer and name not in graph.constants:
                substitutes[name] = other
    return substitutes


def _short(graph: Graph, stands: Indices, renamed: dict[str, str]) -> tuple[Graph, Indices]:
    """Return the graph without repeats that are left out, and the home of every atom."""
    stays = stands == np.arange(len(stands))
    place: Indices = np.cumsum(stays) - 1
    nodes = tuple(_reading(graph.nodes[node], renamed) for node in np.flatnonzero(stays).tolist())
    firsts = np.array([group[0] for group in graph.atoms], np.int64)
    atoms = np.flatnonzero(stays[firsts])
    position: Indices = np.cumsum(stays[firsts]) - 1
    groups = tuple(tuple(place[list(graph.atoms[atom])].tolist()) for atom in atoms.tolist())
    outputs = tuple(dict.fromkeys(renamed.get(name, name) for name in graph.outputs))
    short = Graph(nodes, graph.values, graph.constants, graph.inputs, outputs, groups)
    return short, position[np.array(graph.atom_of, np.int64)[stands[firsts]]]


def _reading(node: Node, renamed: dict[str, str]) -> Node:
    if renamed.keys().isdisjoint(node.reads):
        return node
    inputs, captured = (tuple(renamed.get(name, name) for name in names) for names in (node.inputs, node.captured))
    return replace(node, inputs=inputs, captured=captured)


def _prices(short: Graph, prices: Prices, home: Indices) -> Prices:
    values = topology_of(short).values
    column = {name: at for at, name in enumerate(prices.values)}
    chosen = [column[name] for name in values]
    _, first = np.unique(home, return_index=True)
    return replace(
        prices,
        run=prices.run[:, first],
        into=prices.into[:, chosen],
        out=prices.out[:, chosen],
        values=values,
        again=None if prices.again is None else prices.again[:, chosen],
    )
