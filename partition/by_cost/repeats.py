"""Graphs of repeated blocks: folded to few repeats, solved, and unfolded.

Cheapest placements treat layers of equal wiring and prices equally, except the first and last ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from partition.by_cost import search
from partition.by_cost.pricing import (
    Flags,
    Indices,
    Origin,
    OriginKind,
    Prices,
    Rows,
    Seconds,
    distinct,
    penalized,
    placement_costs,
    topology_of,
)
from partition.graph import Graph, Node

_GRAMS = 8
"""Number of neighborhood sizes to compare: 1 node, 2, 4, ..."""
_DISTANCES = 3
_PATTERNS = 8
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """Run of adjacent, equally connected repeats of one block."""

    starts: tuple[int, ...]
    """First node of every repeat, ascending; at least two."""
    length: int


def find_blocks(graph: Graph, hashes: Sequence[Hashable], least: int = 0) -> tuple[Blocks, ...]:
    """Return disjoint runs of adjacent repeated blocks of at least `least` nodes, the largest first.

    Two nodes `length` apart are equal if their hashes are equal, and each input comes from nodes that are also `length`
    apart, from the same node, or from none. Candidate distances are the most frequent ones between equal neighborhoods
    (n-grams by prefix doubling). Hashes must cover op type, attributes, shapes and prices.
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
    producers = [graph.producer.get(name, -1) for node in graph.nodes for name in node.reads]
    counts = [len(node.reads) for node in graph.nodes]
    return np.array(producers, np.int64), np.cumsum([0, *counts])


def _distances(codes: Indices, least: int) -> Iterator[int]:
    """Yield frequent distances between equal neighborhoods.

    In a run, every neighborhood before the last repeat recurs at this distance, so at least about half of all recur.
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
    """Return True for nodes that equal the node `distance` further on, and a code of the inputs that both nodes share.

    Sums of fractional parts of multiples of the golden ratio are practically unique codes.
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


def uniform_placements(graph: Graph, rows: Rows, blocks: Sequence[Blocks]) -> Iterator[Rows]:
    """Yield variants of `rows` that place all repeats of a block, or all except the first and last, like one repeat."""
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


_ALIKE = 0.01
"""Relative tolerance of equal prices."""

_FOLDED_REPEATS = 2
"""Number of representatives: two, because placements may alternate."""


@dataclass(frozen=True, slots=True, eq=False)
class FoldedGraph:
    """Short graph with few repeats that represent many."""

    graph: Graph
    prices: Prices
    """Prices per repeat are unchanged, so a repeat's costs keep their proportions."""
    representative_atom: Indices
    """[atoms of the long graph] Representative in the short one."""
    repeats: tuple[int, ...]

    def spread(self, rows: Rows) -> Rows:
        long_rows: Rows = rows[self.representative_atom]
        return long_rows

    def gathered(self, rows: Rows) -> Rows:
        """Return a placement of the short graph by majority of the represented atoms."""
        counts = np.zeros((len(self.graph.atoms), int(rows.max(initial=0)) + 1), np.int64)
        np.add.at(counts, (self.representative_atom, rows), 1)
        short_rows: Rows = counts.argmax(axis=1).astype(np.int8)
        return short_rows


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    length: int
    between: int
    repeats: int


def fold(
    graph: Graph, prices: Prices, blocks: Sequence[Blocks], representative_count: int = _FOLDED_REPEATS
) -> FoldedGraph | None:
    """Return a short graph that represents `graph`; None if too little repeats.

    The first and the last repeat of each run remain, and `representative_count` between. Readers of a removed repeat's
    value read its representative's. A run ends where atoms, feasibility or prices (by more than 1 %) differ. The fewest
    possible atoms cross the boundary between repeats. No read that spans several repeats crosses it.
    """
    graph_facts = _GraphFacts.of(graph, prices)
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
class _GraphFacts:
    graph: Graph
    prices: Prices
    atom_of: Indices
    ends: Indices
    """[atoms, 2] First and last node."""
    wide: Indices
    """[multi-node atoms, 2] First and last node, sorted."""
    column: dict[str, int]
    output: Seconds

    @classmethod
    def of(cls, graph: Graph, prices: Prices) -> _GraphFacts:
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


def _spans(graph_facts: _GraphFacts, run: Blocks, representative_count: int) -> Iterator[_Span]:
    length = run.length
    if len(run.starts) < representative_count + 3:
        return
    border = _repeat_start_with_fewest_cuts(graph_facts, run)
    if border is None:
        return
    start = run.starts[0] + border
    count = len(run.starts) - (border > 0)
    same = _equal_at_distance(graph_facts, start, length, count)
    breaks = [0, *(np.flatnonzero(~same) + 1).tolist(), count]
    for first, end in pairwise(breaks):
        middle = (end - first - 2) // representative_count * representative_count
        if middle > representative_count:
            yield _Span(start + (end - 1 - middle) * length, length, middle, end - first)


def _repeat_start_with_fewest_cuts(graph_facts: _GraphFacts, run: Blocks) -> int | None:
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
    if first == end:
        return
    low, high = first % length, (end - 1) % length + 1
    crossing[low] += weight
    crossing[high] -= weight
    if low >= high:
        crossing[0] += weight


def _equal_at_distance(graph_facts: _GraphFacts, start: int, length: int, count: int) -> Flags:
    nodes = np.arange(start, start + length * count)
    ends = graph_facts.ends[graph_facts.atom_of[nodes]]
    within = (ends - (nodes - (nodes - start) % length)[:, None]).reshape(count, length, 2)
    is_contained: Flags = np.logical_and.reduce((within >= 0) & (within < length), axis=(1, 2))
    same = (within[1:] == within[:-1]).all(axis=(1, 2)) & is_contained[1:] & is_contained[:-1]
    cost = _node_prices(graph_facts, start, length * count).reshape(-1, count, length)
    alike: Flags = same & np.isclose(cost[:, 1:], cost[:, :-1], rtol=_ALIKE, atol=0.0).all(axis=(0, 2))
    return alike


def _node_prices(graph_facts: _GraphFacts, start: int, count: int) -> Seconds:
    graph, prices, column = graph_facts.graph, graph_facts.prices, graph_facts.column
    nodes = graph.nodes[start : start + count]
    node_indices: list[int] = []
    values: list[int] = []
    for at, node in enumerate(nodes):
        columns = [column[name] for name in node.outputs if name]
        columns += [column[name] for name in node.reads if name in column and name not in graph.producer]
        node_indices += [at] * len(columns)
        values += columns
    crossing = np.concatenate(
        [prices.transfer_in[:, values], prices.transfer_out[:, values], graph_facts.output[None, values]]
    )
    summed = [np.bincount(np.array(node_indices, np.int64), row, count) for row in crossing]
    run = prices.run[:, graph_facts.atom_of[start : start + count]]
    return np.concatenate([run, np.stack(summed)])


def _renamed(graph: Graph, stands: Indices) -> dict[str, str]:
    substitutes: dict[str, str] = {}
    for node in np.flatnonzero(stands != np.arange(len(stands))).tolist():
        removed_node, substitute_node = graph.nodes[node], graph.nodes[stands[node]]
        substitutes.update(zip(removed_node.outputs, substitute_node.outputs, strict=False))
        for name, other in zip(removed_node.reads, substitute_node.reads, strict=False):
            if name != other and name not in graph.producer and name not in graph.constants:
                substitutes[name] = other
    return substitutes


def _short(graph: Graph, stands: Indices, renamed: dict[str, str]) -> tuple[Graph, Indices]:
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
    _, first = np.unique(home, return_index=True)
    return replace(prices.of_columns([column[name] for name in values], values), run=prices.run[:, first])


_SMALLER = 2
_SEARCH_WORK = 6_000_000


def place_repeats(
    graph: Graph, prices: Prices, starts: tuple[search.Named, ...], blocks: Sequence[Blocks]
) -> search.PlacedOnTwo | None:
    """Return placements and a lower bound; None if too little repeats or no placement is found.

    Cuts of the entire graph give the bound. The folded graph is placed as usual, and its placements are unfolded.
    On two devices, local search moves an atom of the short graph with all atoms that it represents.
    """
    folded = fold(graph, prices, blocks)
    if folded is None or _SMALLER * len(folded.graph.atoms) > len(graph.atoms):
        return None
    return place_folded(graph, prices, starts, folded)


def place_folded(
    graph: Graph, prices: Prices, starts: tuple[search.Named, ...], folded: FoldedGraph
) -> search.PlacedOnTwo | None:
    """Place a folded graph; see `place_repeats`."""
    return (_on_two if len(prices.devices) == 2 else _on_several)(graph, prices, starts, folded)


def _on_two(
    graph: Graph, prices: Prices, starts: tuple[search.Named, ...], folded: FoldedGraph, work: int = search.CUT_WORK
) -> search.PlacedOnTwo | None:
    cuts = search.bounding_cuts(graph, prices, work)
    if cuts is None:
        return None
    initial_placements = (*starts, *cuts.placements)
    gathered = _gathered(folded, initial_placements)
    solution = search.place_on_two(folded.graph, folded.prices, gathered)
    if solution is None:
        return None
    short = distinct((*solution.placements, *gathered))
    soft = penalized(graph, prices)
    spread = _spread(folded, short)
    costs = placement_costs(graph, soft, [rows for _, rows in (*spread, *initial_placements)])
    long_costs = search.PlacementCosts(graph, soft, folded.representative_atom)
    searched = search.search_from_cheapest(
        folded.graph, folded.prices, long_costs, short, costs[: len(short)], OriginKind.MOVED_ALIKE, _SEARCH_WORK
    )
    named = (*starts, *spread, *cuts.placements, *_spread(folded, searched))
    return search.PlacedOnTwo(named, cuts.bound(costs), folded.repeats)


def _on_several(
    graph: Graph, prices: Prices, starts: tuple[search.Named, ...], folded: FoldedGraph
) -> search.PlacedOnTwo | None:

    def solve(of_two: Prices, rows: list[int]) -> search.PlacedOnTwo | None:
        return _on_two(graph, of_two, (), replace(folded, prices=folded.prices.of_rows(rows)), search.PAIR_WORK)

    initial_placements = (*starts, *search.best_on_pairs(graph, prices, solve))
    short = distinct(search.moved_on_several(folded.graph, folded.prices, _gathered(folded, initial_placements)))
    soft = penalized(graph, prices)

    def cost_of(rows: Rows) -> float:
        return search.searching_cost(graph, soft, folded.spread(rows))

    start = min(short, key=lambda placement: cost_of(placement[1]))
    _, moved = search.moved_from(folded.graph, folded.prices, start, cost_of, len(graph.atoms))
    together = (Origin(OriginKind.MOVED_ALIKE, base=start[0]), moved)
    named = (*initial_placements, *_spread(folded, distinct((*short, together))))
    costs = placement_costs(graph, prices, [rows for _, rows in named])
    best = int(costs.argmin())
    bound = search.bound_on_several(graph, prices, named[best][1], float(costs[best]))
    return None if bound is None else search.PlacedOnTwo(named, bound, folded.repeats)


def _gathered(folded: FoldedGraph, named: Sequence[search.Named]) -> list[search.Named]:
    return distinct((origin, folded.gathered(rows)) for origin, rows in named)


def _spread(folded: FoldedGraph, named: Iterable[search.Named]) -> tuple[search.Named, ...]:
    runs = len(folded.repeats)
    kind = OriginKind.ONE_REPEAT if runs == 1 else OriginKind.ONE_REPEAT_PER_RUN
    solved = (folded.repeats[0] if runs == 1 else runs,)
    return tuple((Origin(kind, solved, origin), folded.spread(rows)) for origin, rows in named)
