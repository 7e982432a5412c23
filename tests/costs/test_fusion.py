"""Fusion into atoms; brute force decides if the atoms can run in some order."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.costs import Fusion, cost_table, fuse_atoms, fusion_of
from nnadapter.drivers import NO_OPERATION, SUPPORTED, Reason, Unsupported
from partition import Graph, Node
from tests.costs.judging import priced
from tests.models import CHAIN, parse


def graph_of(edges, nodes):
    reads = {node: [f"v{a}" for a, b in edges if b == node] for node in range(nodes)}
    result = tuple(Node(f"n{node}", "Sum", "", tuple(reads[node]) or ("x",), (f"v{node}",)) for node in range(nodes))
    return Graph(result, {}, frozenset(), ("x",), tuple(f"v{node}" for node in range(nodes)))


@st.composite
def cases(draw):
    nodes = draw(st.integers(2, 8))
    pairs = list(combinations(range(nodes), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True))
    colors = draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes))
    groups = [tuple(node for node in range(nodes) if colors[node] == color) for color in range(1, 4)]
    return graph_of(edges, nodes), tuple(group for group in groups if len(group) > 1)


def runnable(graph, atoms):
    """Return true if the atoms have no cycle, by removing atoms that wait for nothing."""
    left = {atom: set(atom) for atom in atoms}
    while left:
        waiting = {node for atom in left for node in atom}
        made = {name for node in waiting for name in graph.nodes[node].outputs}
        free = [
            atom
            for atom in left
            if not any(
                name in made and graph.producer[name] not in atom for node in atom for name in graph.nodes[node].reads
            )
        ]
        if not free:
            return False
        for atom in free:
            del left[atom]
    return True


@given(cases())
def test_groups_are_atoms_unless_cyclic(case):
    graph, groups = case
    result = fuse_atoms(graph, [Fusion(groups)])
    singles = [(node,) for node in range(len(graph.nodes)) if not any(node in group for group in groups)]
    if runnable(graph, [*groups, *singles]):
        assert {atom for atom in result.graph.atoms if len(atom) > 1} == set(groups)
    kept = [atom for atom in result.graph.atoms if len(atom) > 1]
    assert set(kept) <= set(groups)
    assert all(tuple(sorted(part)) == atom for part, atom in zip(result.parts, result.graph.atoms, strict=True))
    for group in groups:  # a group that can run alone is not split for another group
        alone = [(node,) for node in range(len(graph.nodes)) if node not in group]
        if not runnable(graph, [group, *alone]):
            assert group not in kept


def test_cyclic_group_is_dropped():
    graph = graph_of([(0, 1), (1, 2), (3, 4)], 5)
    assert fuse_atoms(graph, [Fusion(((0, 2),)), Fusion(((3, 4),))]).graph.atoms == ((0,), (3, 4), (1,), (2,))


def test_overlapping_groups_of_devices_merge():
    graph = graph_of([(0, 1), (1, 2)], 3)
    assert fuse_atoms(graph, [Fusion(((0, 1),)), Fusion(((1, 2),))]).graph.atoms == ((0, 1, 2),)


def test_verdicts_and_placements_are_carried_over():
    graph = graph_of([(0, 1), (1, 2)], 3)
    result = fuse_atoms(graph, [Fusion(((1, 2),))])
    no = Unsupported(Reason.SWITCHED_OFF, "off")
    assert result.verdicts({"a": [SUPPORTED, no, SUPPORTED]}) == {"a": (SUPPORTED, no)}
    assert result.spread(["cpu", "a"]) == ("cpu", "a", "a")
    same = fuse_atoms(graph, [])
    assert same.graph is graph and same.parts == ((0,), (1,), (2,))


def test_fusion_is_read_from_texts():
    model = priced(parse(CHAIN), "null").judgment.model
    texts = ["one", NO_OPERATION, "two", "one"]
    assert fusion_of(model.graph, model.conversion, range(4), texts) == Fusion(((0, 3),), frozenset({1}))
    assert fusion_of(model.graph, model.conversion, range(4), texts[:3]) == Fusion()


def test_fusion_of_large_graphs_is_skipped():
    result = priced(parse(CHAIN), "fake_npu", most=3)
    assert result.fusions["fake_npu"].groups == ()
    assert any("not asked about the fusion of 4 operations" in note for note in result.table.notes)


def test_cyclic_group_is_priced_by_node():
    result = priced(parse(CHAIN), "null")
    circle = {"null": Fusion(((0, 2),))}  # node 1 is between them
    graph = fuse_atoms(result.judgment.model.graph, circle.values())
    assert len(graph.graph.atoms) == 4
    table = cost_table(graph, result.judgment.model.conversion, result.judgment.support.verdicts, result.costs, circle)
    np.testing.assert_array_equal(table.prices.run, result.table.prices.run)
