from hypothesis import given

from tests.partition.small_graphs import grouped_graphs


@given(grouped_graphs())
def test_atom_predecessors_are_the_producers(drawn):
    graph, _ = drawn
    home = {
        name: atom for atom, nodes in enumerate(graph.atoms) for node in nodes for name in graph.nodes[node].outputs
    }
    for atom, nodes in enumerate(graph.atoms):
        read = {home[name] for node in nodes for name in graph.nodes[node].reads if name in home}
        found = graph.atom_predecessors[atom]
        assert set(found) == read - {atom} and len(found) == len(set(found))
