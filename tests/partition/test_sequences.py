from hypothesis import given

from partition.plan import schedule
from tests.partition.small_graphs import fewest_turns, long_graph, placed_graphs


@given(placed_graphs(labels="abcd", most=8))
def test_search_is_exact_when_it_claims_so(case):
    graph, placement = case
    turns, exact = schedule(graph.atom_predecessors, placement)
    assert exact
    assert len(turns) == fewest_turns(graph, placement)


@given(placed_graphs(labels="abc", most=8))
def test_greedy_schedules_everything_and_rarely_claims_exactness(case):
    graph, placement = case
    turns, exact = schedule(graph.atom_predecessors, placement, work=0)
    assert sorted(atom for _, atoms in turns for atom in atoms) == list(range(len(placement)))
    assert len(turns) >= fewest_turns(graph, placement)
    assert not exact or len(turns) == fewest_turns(graph, placement)


def test_beam_beats_greedy_without_claiming_exactness():
    graph, placement = long_graph(1000, "abcd")
    greedy, _ = schedule(graph.atom_predecessors, placement, work=0)
    beam, exact = schedule(graph.atom_predecessors, placement, work=2_000_000)
    assert len(beam) < len(greedy)
    assert not exact
