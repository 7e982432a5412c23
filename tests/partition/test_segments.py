import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition import GraphError, Segment, check_order, cut, halve
from tests.partition.small_graphs import fewest_turns, graph_of, grouped_graphs, long_graph, placed_graphs


def assert_lawful(graph, placement, segments):
    """Check that every atom is on its device once, and that the graph of segments is sorted."""
    home = {atom: at for at, segment in enumerate(segments) for atom in segment.atoms}
    assert sorted(atom for segment in segments for atom in segment.atoms) == list(range(len(graph.atoms)))
    assert all(placement[atom] == segment.device for segment in segments for atom in segment.atoms)
    made = {name: home[graph.atom_of[index]] for index, node in enumerate(graph.nodes) for name in node.outputs}
    for index, node in enumerate(graph.nodes):
        assert all(made[name] <= home[graph.atom_of[index]] for name in node.inputs if name in made)


@given(placed_graphs())
def test_cut_of_two_labels_is_minimal(case):
    graph, placement = case
    result = cut(graph, placement)
    assert_lawful(graph, placement, result.segments)
    assert result.exact
    assert len(result.segments) == fewest_turns(graph, placement)


@given(placed_graphs())
def test_host_keeps_accelerator_segments_at_their_minimum(case):
    graph, placement = case
    found = cut(graph, placement, host="b").segments
    assert len(found) == fewest_turns(graph, placement)
    assert sum(segment.device == "a" for segment in found) == fewest_turns(graph, placement, only="a")


@given(grouped_graphs())
def test_atoms_of_several_nodes(case):
    graph, placement = case
    result = cut(graph, placement)
    assert_lawful(graph, placement, result.segments)
    assert len(result.segments) == fewest_turns(graph, placement)


@given(placed_graphs(labels="abc", most=8))
def test_three_labels(case):
    graph, placement = case
    result = cut(graph, placement)
    assert_lawful(graph, placement, result.segments)
    assert result.exact
    assert len(result.segments) == fewest_turns(graph, placement)


def test_siblings_share_a_segment():
    graph = graph_of([set(), {0}, {0}, {1, 2}])
    assert cut(graph, "baab").segments == (Segment("b", (0,)), Segment("a", (1, 2)), Segment("b", (3,)))


def test_tie_goes_to_the_host():
    graph = graph_of([set(), {0}, {1}, set(), {3}, {4}])
    assert [segment.device for segment in cut(graph, "abaaba", host="b").segments] == ["a", "b", "a"]
    graph = graph_of([set(), {0}, set(), {2}])
    assert [segment.device for segment in cut(graph, "abba", host="b").segments] == ["b", "a", "b"]
    assert [segment.device for segment in cut(graph, "abba", host="a").segments] == ["a", "b", "a"]


def test_empty_graph():
    assert cut(graph_of([]), ()).segments == ()


def test_placement_of_another_graph():
    with pytest.raises(GraphError, match="1 devices for 2 atoms"):
        cut(graph_of([set(), {0}]), "a")


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([("a", (0,)), ("a", (2,)), ("b", (1,))], "'n2' in segment 1 reads from node 'n1'"),
        ([("a", (0, 2)), ("b", (1,))], "'n2' in segment 0 reads from node 'n1', which runs later, in segment 1"),
        ([("a", (0, 1))], "'n2' is in no segment"),
        ([("a", (0, 1, 2)), ("a", (1,))], "'n1' is in two segments"),
        ([("a", (0, 1, 2, 3))], "names atom 3"),
    ],
)
def test_invalid_orders_are_refused(segments, message):
    with pytest.raises(GraphError, match=message):
        check_order(graph_of([set(), {0}, {0, 1}]), [Segment(*segment) for segment in segments])


@given(placed_graphs(), st.data())
def test_halves_satisfy_the_invariants(case, data):
    graph, placement = case
    weights = [data.draw(st.integers(0, 100)) for _ in placement]
    segments = cut(graph, placement).segments
    for at, segment in enumerate(segments):
        halves = halve(segment, weights)
        assert (halves is None) == (len(segment.atoms) == 1)
        assert_lawful(graph, placement, (*segments[:at], *(halves or (segment,)), *segments[at + 1 :]))


def test_halves_are_balanced():
    front, back = halve(Segment("a", (2, 3, 5, 7)), {2: 1, 3: 1, 5: 8, 7: 5})
    assert (front.atoms, back.atoms) == ((2, 3, 5), (7,))


def count_lines(function):
    """Count executed lines of Python: a measure of work that is independent of the machine's load."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["aaab", "abc"])
def test_work_is_linear(labels):
    def work(count):
        graph, placement = long_graph(count, labels)
        return count_lines(lambda: cut(graph, placement))

    assert work(16_000) < 2.5 * work(8_000)
