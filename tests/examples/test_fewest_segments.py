"""The oracle of the reading tests, compared with every possible schedule."""

from itertools import product

import numpy as np
import pytest

from partition import Graph, Node
from tests.examples.fewest_segments import fewest_segments

NODES = 5


def random_graph(random):
    nodes = tuple(
        Node(
            name=f"n{index}",
            op_type="Sum",
            domain="",
            inputs=("x", *(f"v{before}" for before in range(index) if random.random() < 0.5)),
            outputs=(f"v{index}",),
        )
        for index in range(NODES)
    )
    return Graph(nodes=nodes, values={}, constants=frozenset(), inputs=("x",), outputs=(f"v{NODES - 1}",))


def runs(graph, device_of, turn_of):
    """Return whether every node runs in a turn of its device, and after its producers."""
    producers = (
        (turn_of[graph.producer[name]], turn)
        for node, turn in zip(graph.nodes, turn_of, strict=True)
        for name in node.reads
        if name != "x"
    )
    return all(turn % 2 == device for turn, device in zip(turn_of, device_of, strict=True)) and all(
        before <= turn for before, turn in producers
    )


@pytest.mark.parametrize("seed", range(8))
def test_fewest_segments_equals_exhaustive_search(seed):
    random = np.random.default_rng(seed)
    graph, device_of = random_graph(random), random.integers(0, 2, NODES).tolist()
    lengths = [len(set(turns)) for turns in product(range(NODES + 1), repeat=NODES) if runs(graph, device_of, turns)]
    assert fewest_segments(graph, device_of) == min(lengths)
