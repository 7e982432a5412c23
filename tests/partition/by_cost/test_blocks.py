import random

import numpy as np
import pytest

from partition.by_cost.latency import place_by_latency
from partition.by_cost.pricing import Prices, price, topology_of
from partition.by_cost.repeats import Blocks, find_blocks, uniform_placements
from tests.partition.generated_graphs import BLOCK, chain, linked, transformer, woven
from tests.partition.small_graphs import graph_of
from tests.partition.test_segments import count_lines

LAYERS = 24
SIZE = len(BLOCK)


def types(graph):
    return [node.op_type for node in graph.nodes]


def stack(layers=LAYERS):
    return transformer(1 + layers * SIZE, kinds=True)


def equal_prices(graph, seed=0, launch=0.3):
    """Return prices of nodes and their outputs that depend only on the op type."""
    source = np.random.default_rng(seed)
    kinds = sorted(set(types(graph)))
    cost = {kind: source.lognormal(0, 1, 4) for kind in kinds}
    refused = set(source.choice(kinds, 3))
    host = np.array([cost[kind][0] for kind in types(graph)])
    fast = np.array([np.inf if kind in refused else cost[kind][0] / 4 for kind in types(graph)])
    maker = {name: node.op_type for node in graph.nodes for name in node.outputs}
    values = topology_of(graph).values
    crossing = np.array([[cost[maker.get(name, kinds[0])][at] / 4 for name in values] for at in (2, 3)])
    none = np.zeros(len(values))
    return Prices(
        ("npu", "cpu"),
        "cpu",
        np.stack([fast, host]),
        np.stack([crossing[0], none]),
        np.stack([crossing[1], none]),
        np.array([launch, 0.0]),
        values,
    )


def assert_alike(graph, hashes, run):
    """Check that every repeat has the hashes of the first block and reads its own or the same nodes."""
    base = run.starts[0]
    for start in run.starts[1:]:
        for offset in range(run.length):
            assert hashes[start + offset] == hashes[base + offset]
            here, there = (
                [graph.producer.get(name, -1) for name in graph.nodes[at + offset].reads] for at in (base, start)
            )
            for one, other in zip(here, there, strict=True):
                assert other == one or (one >= 0 and other - one == start - base)


def test_layers_are_found():
    graph = stack()
    (run,) = find_blocks(graph, types(graph))
    assert run == Blocks(tuple(1 + SIZE * at for at in range(LAYERS)), SIZE)
    assert_alike(graph, types(graph), run)


def test_shared_inputs_do_not_hide_layers():
    reads = [set(), {0}]
    for _ in range(20):
        last = len(reads) - 1
        reads += [{last}, {last + 1, 0}, {last + 2, last}]
    graph = linked(reads, ["Input", "Mask", *["Norm", "Attend", "Add"] * 20])
    (run,) = find_blocks(graph, types(graph))
    assert (run.length, len(run.starts)) == (3, 20)
    assert_alike(graph, types(graph), run)


def test_different_hash_ends_a_run():
    graph = stack()
    hashes = types(graph)
    hashes[1 + 10 * SIZE] = "another"
    runs = find_blocks(graph, hashes)
    assert sum(len(run.starts) for run in runs) >= LAYERS - 2
    for run in runs:
        assert run.length == SIZE
        assert_alike(graph, hashes, run)


def test_a_chain_of_one_kind_is_a_block_of_one_node():
    graph = chain(10)
    assert find_blocks(graph, types(graph)) == (Blocks(tuple(range(1, 10)), 1),)


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed):
    source = random.Random(seed)
    graph = woven(60, seed, reach=4)
    hashes = [source.choice("ab") for _ in graph.nodes]
    runs = find_blocks(graph, hashes)
    covered = [node for run in runs for start in run.starts for node in range(start, start + run.length)]
    assert len(covered) == len(set(covered))
    for run in runs:
        assert len(run.starts) > 1
        assert_alike(graph, hashes, run)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_nothing_repeats(count):
    graph = graph_of([set() for _ in range(count)])
    assert find_blocks(graph, list(range(count))) == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 6))])
def test_inner_layers_get_the_same_placement(seed):
    graph = stack()
    prices = equal_prices(graph, seed)
    blocks = find_blocks(graph, types(graph))
    placed = place_by_latency(graph, prices, blocks=blocks)
    without = place_by_latency(graph, prices)
    assert placed.cost <= without.cost * (1 + 1e-12)
    assert placed.cost == pytest.approx(price(graph, prices, placed.placement))
    layers = {placed.placement[start : start + SIZE] for start in blocks[0].starts[1:-1]}
    assert len(layers) == 1


@pytest.mark.slow
def test_search_for_repeats_adds_little_work():
    graph = stack()
    prices = equal_prices(graph)
    blocks = find_blocks(graph, types(graph))
    plain = count_lines(lambda: place_by_latency(graph, prices))
    assert count_lines(lambda: place_by_latency(graph, prices, blocks=blocks)) < 1.2 * plain


def test_patterns_are_tried_everywhere_and_inside_blocks():
    graph = chain(5)
    rows = np.array([0, 1, 1, 0, 0], np.int8)
    found = {tuple(each.tolist()) for each in uniform_placements(graph, rows, [Blocks((1, 2, 3, 4), 1)])}
    assert found == {(0, 0, 0, 0, 0), (0, 1, 1, 1, 1), (0, 1, 0, 0, 0), (0, 1, 1, 1, 0)}
