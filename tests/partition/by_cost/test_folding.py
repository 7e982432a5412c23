import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition import Graph, Node
from partition.by_cost.pricing import topology_of
from partition.by_cost.repeats import Blocks, fold
from tests.partition.by_cost.repeating import blocks_of, kind_prices, repeating
from tests.partition.by_cost.test_blocks import SIZE, equal_prices, stack
from tests.partition.generated_graphs import linked, woven
from tests.partition.test_segments import count_lines


def folded_of(graph, prices=None):
    return fold(graph, prices or kind_prices(graph, supported=1.0), blocks_of(graph))


def wiring(graph):
    """Return the type of every node with its producers, or the names of model inputs."""
    return [(node.op_type, tuple(graph.producer.get(name, name) for name in node.reads)) for node in graph.nodes]


@pytest.mark.parametrize("layers", [7, 24, 25])
def test_folded_stack_equals_a_shorter_stack(layers):
    graph = stack(layers)
    folded = folded_of(graph, equal_prices(graph))
    shorter = stack(6 - layers % 2)
    assert wiring(folded.graph) == wiring(shorter)
    assert folded.repeats == (layers - 1,)  # only the last layer's sum is an output
    alone = equal_prices(shorter)
    for name in ("run", "transfer_in", "transfer_out", "launch"):
        assert np.array_equal(getattr(folded.prices, name), getattr(alone, name))


def kinds_read(graph, atom):
    """Return the types of an atom's nodes and of their producers."""
    nodes = [graph.nodes[node] for node in graph.atoms[atom]]
    made_by = [[graph.producer.get(name) for name in node.reads] for node in nodes]
    return [
        (node.op_type, [at if at is None else graph.nodes[at].op_type for at in each])
        for node, each in zip(nodes, made_by, strict=True)
    ]


@given(st.integers(6, 20), st.integers(1, 6), st.integers(0, 500), st.integers(1, 3))
def test_every_atom_equals_its_representative(layers, size, seed, kept):
    graph = repeating(layers, size, seed)
    prices = kind_prices(graph, seed)
    folded = fold(graph, prices, blocks_of(graph), kept)
    if folded is None:
        return
    short = folded.graph
    for atom, home in enumerate(folded.representative_atom.tolist()):
        assert kinds_read(graph, atom) == kinds_read(short, home)
    assert np.array_equal(folded.spread(folded.prices.run.T).T, prices.run)
    rows = np.random.default_rng(seed).integers(0, 3, len(short.atoms)).astype(np.int8)
    assert np.array_equal(folded.gathered(folded.spread(rows)), rows)


def test_irregular_layer_is_not_folded():
    graph = stack(30)
    prices = equal_prices(graph)
    odd = 1 + 12 * SIZE + 3
    prices.run[0, odd] = np.inf if np.isfinite(prices.run[0, odd]) else 1.0
    folded = folded_of(graph, prices)
    assert folded.repeats == (12, 16)
    home = folded.representative_atom[1 + 12 * SIZE : 1 + 13 * SIZE]
    assert (np.bincount(folded.representative_atom)[home] == 1).all()
    takes = np.isfinite(prices.run)
    assert np.array_equal(takes, np.isfinite(folded.prices.run)[:, folded.representative_atom])


def test_similar_prices_count_as_equal():
    graph = stack()
    prices = equal_prices(graph)
    prices.run[:] *= np.linspace(1, 1.009, prices.run.shape[1])
    assert folded_of(graph, prices).repeats == (23,)
    prices.run[:] *= 1 + np.arange(prices.run.shape[1])
    assert folded_of(graph, prices) is None


def grouped(graph, atoms):
    remaining = {node for nodes in atoms for node in nodes}
    every = sorted([*atoms, *((node,) for node in range(len(graph.nodes)) if node not in remaining)])
    return Graph(graph.nodes, graph.values, graph.constants, graph.inputs, graph.outputs, tuple(every))


def chain_of(layers, size):
    nodes = range(layers * size)
    return linked([{at - 1} if at else set() for at in nodes], [f"Op{at % size}" for at in nodes])


def test_atoms_across_block_boundaries_shift_the_blocks():
    plain = chain_of(20, 3)
    graph = grouped(plain, [(at, at + 1) for at in range(5, 50, 3)])
    folded = folded_of(graph)
    assert folded.repeats == (15,)
    home = folded.representative_atom[[graph.atom_of[at] for at in range(12, 40)]]
    assert [len(folded.graph.atoms[at]) for at in home] == [len(graph.atoms[graph.atom_of[at]]) for at in range(12, 40)]


def test_atom_across_two_repeats_is_not_folded():
    graph = grouped(chain_of(20, 3), [(29, 30)])
    folded = folded_of(graph)
    assert len(folded.repeats) == 2
    assert np.bincount(folded.representative_atom)[folded.representative_atom[graph.atom_of[29]]] == 1


@pytest.mark.parametrize(("back", "folds"), [(1, True), (3, True), (4, True), (5, True), (6, False), (9, False)])
def test_reads_from_earlier_blocks(back, folds):
    """A node reads the node `back` positions earlier, in blocks of three."""
    kinds = [f"Op{at % 3}" for at in range(90)]
    graph = linked([{at - 1, at - back} - {-1} if at >= back else {at - 1} - {-1} for at in range(90)], kinds)
    third = linked([{at - 1, at - back} if at >= back and at % 3 == 0 else {at - 1} - {-1} for at in range(90)], kinds)
    folded = folded_of(third)
    assert (folded is not None) == folds
    assert (folded_of(graph) is not None) == (back <= 3)
    if folds:
        places = [tuple(sorted(set(each))) for _, each in wiring(folded.graph)]
        assert places[:6] == [tuple(sorted(set(each))) for _, each in wiring(third)][:6]


def caches(layers, joined):
    """Return layers with an input and an output each; a node may join all outputs at the end."""
    nodes, last = [], "x"
    for at in range(layers):
        nodes.append(Node(f"join{at}", "Join", "", (last, f"past{at}", "shared"), (f"present{at}",)))
        nodes.append(Node(f"mix{at}", "Mix", "", (f"present{at}",), (f"h{at}",)))
        last = f"h{at}"
    presents = tuple(f"present{at}" for at in range(layers))
    if joined:
        nodes.append(Node("all", "Concat", "", presents, ("y",)))
    inputs = ("x", "shared", *(f"past{at}" for at in range(layers)))
    return Graph(tuple(nodes), {}, frozenset({"shared"}), inputs, ("y",) if joined else (*presents, last))


@pytest.mark.parametrize("joined", [True, False])
def test_inputs_and_outputs_of_every_layer(joined):
    graph = caches(20, joined)
    folded = folded_of(graph)
    short = folded.graph
    layers = sum(node.op_type == "Join" for node in short.nodes)
    assert layers < 7
    assert len({node.inputs[1] for node in short.nodes if node.op_type == "Join"}) == layers
    gathered = short.nodes[-1].inputs if joined else short.outputs
    assert {short.producer[name] for name in gathered} >= {0, 2, 4}
    assert joined or len(set(short.outputs)) == len(short.outputs) == layers + 1
    assert set(folded.prices.values) == set(topology_of(short).values)


def test_two_runs_in_one_graph():
    first = [{at - 1} if at else set() for at in range(40)]
    graph = linked([*first, *({at - 1, at - 2} for at in range(40, 100))], ["A", "B"] * 20 + ["C", "D", "E"] * 20)
    folded = folded_of(graph)
    assert len(folded.repeats) == 2
    assert len(folded.graph.nodes) <= 30


def test_nothing_to_fold():
    graph = woven(50)
    prices = kind_prices(graph, supported=1.0)
    assert fold(graph, prices, ()) is None
    assert fold(graph, prices, [Blocks((0, 10, 20), 10)]) is None


def lines_of_folding(layers):
    graph = stack(layers)
    prices, blocks = equal_prices(graph), blocks_of(graph)
    graph.derive()
    return count_lines(lambda: fold(graph, prices, blocks))


def test_folding_is_linear():
    assert lines_of_folding(200) < 2.2 * lines_of_folding(100)
