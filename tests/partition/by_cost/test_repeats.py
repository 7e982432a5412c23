from itertools import product

import numpy as np
import pytest

from partition.by_cost.latency import BoundKind, place_by_latency
from partition.by_cost.pricing import price
from partition.by_cost.repeats import fold, place_folded, place_repeats
from partition.by_cost.search import PlacementCosts
from tests.partition.brute_force import cheapest_cost
from tests.partition.by_cost.repeating import blocks_of, kind_prices, repeating
from tests.partition.by_cost.test_blocks import SIZE, equal_prices, stack
from tests.partition.by_cost.test_latency import assert_lawful
from tests.partition.generated_graphs import woven
from tests.partition.test_segments import count_lines

TIGHT = 1 + 1e-9
LAUNCHES = [0.0, 0.3, 2.0, 6.0]
ALL_FIRST = "everything supported"


def supported(prices):
    return ((ALL_FIRST, np.isfinite(prices.run).argmax(axis=0).astype(np.int8)),)


def optimum(graph, prices):
    if len(prices.devices) > 2:
        return cheapest_cost(graph, prices)
    options = [np.flatnonzero(column) for column in np.isfinite(prices.run).T]
    every = np.array(list(product(*options)), np.int8).T
    return float(PlacementCosts(graph, prices).of(every).min())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "layers", "size", "kept", "seeds"),
    [
        (2, 7, 2, 2, 4),
        pytest.param(2, 7, 2, 2, 12, marks=pytest.mark.sweep),
        (2, 5, 3, 1, 4),
        pytest.param(2, 5, 3, 1, 12, marks=pytest.mark.sweep),
        (3, 6, 1, 2, 2),
        pytest.param(3, 6, 1, 2, 4, marks=pytest.mark.sweep),
        pytest.param(3, 7, 1, 2, 3, marks=pytest.mark.sweep),
    ],
)
def test_against_brute_force(devices, layers, size, kept, seeds):
    """Graphs are folded even if that hardly shortens them."""
    excess = []
    for seed in range(seeds):
        graph = repeating(layers, size, seed)
        launch = LAUNCHES[seed % 4]
        prices = kind_prices(graph, seed, devices=("npu", "gpu", "cpu")[3 - devices :], launch=launch)
        folded = fold(graph, prices, blocks_of(graph), kept)
        found = folded and place_folded(graph, prices, supported(prices), folded)
        if found is None:
            continue
        best = optimum(graph, prices)
        costs = [price(graph, prices, [prices.devices[row] for row in rows]) for _, rows in found.placements]
        assert found.bound <= best * TIGHT
        assert min(costs) >= best / TIGHT
        excess.append(min(costs) / best - 1)
    assert len(excess) > seeds // 2
    assert np.mean(excess) <= 0.005


@pytest.mark.sweep
@pytest.mark.parametrize(("devices", "shapes"), [
    (2, [(12, 10), (30, 7)]),
    pytest.param(2, [(100, 4)], marks=pytest.mark.sweep),
    pytest.param(3, [(10, 4)], marks=pytest.mark.sweep),
    pytest.param(3, [(16, 6)], marks=pytest.mark.sweep),
])  # fmt: skip
def test_against_the_unfolded_graph(devices, shapes):
    """Each placement respects the bounds of the other, and on average folding loses nothing."""
    excess, used = [], 0
    for seed, (layers, size) in product(range(4), shapes):
        graph = repeating(layers, size, seed + 40, outside=3)
        prices = kind_prices(graph, seed, devices=("npu", "gpu", "cpu")[3 - devices :], launch=LAUNCHES[seed])
        placed = place_by_latency(graph, prices, blocks=blocks_of(graph))
        whole = place_by_latency(graph, prices)
        assert_lawful(graph, prices, placed)
        assert max(placed.bound, whole.bound) <= min(placed.cost, whole.cost) * TIGHT
        excess.append(placed.cost / whole.cost - 1)
        used += bool(placed.repeats)
    assert used == len(excess)
    assert np.mean(excess) <= 0.002
    assert max(excess) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 4))])
def test_layers_of_a_transformer(seed):
    graph = stack(40)
    prices = equal_prices(graph, seed)
    blocks = blocks_of(graph)
    placed = place_by_latency(graph, prices, blocks=blocks)
    whole = place_by_latency(graph, prices)
    assert placed.cost <= whole.cost * TIGHT
    assert placed.bound == pytest.approx(whole.bound)
    assert placed.bound_kind is BoundKind.CUT
    assert placed.repeats == (39,)
    assert whole.repeats == ()
    assert placed == place_by_latency(graph, prices, blocks=blocks)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("npu", "cpu"), pytest.param(("npu", "gpu", "cpu"), marks=pytest.mark.sweep)])
def test_irregular_layers_get_a_feasible_placement(devices):
    """A device refuses a node, or a value may not cross."""
    graph = stack(80)
    prices = kind_prices(graph, 1, devices=devices)
    prices.run[0, 1 + SIZE * np.array([3, 17])] = np.inf
    prices.transfer_in[:-1, prices.values.index(f"v{1 + 25 * SIZE}")] = np.inf
    placed = place_by_latency(graph, prices, blocks=blocks_of(graph))
    assert_lawful(graph, prices, placed)
    assert len(placed.repeats) > 1
    assert {ALL_FIRST, "all on cpu"} <= {str(candidate.origin) for candidate in placed.candidates}
    assert placed.cost <= place_by_latency(graph, prices).cost * 1.005


def test_layers_whose_values_never_cross():
    graph = stack(20)
    prices = equal_prices(graph)
    prices.transfer_in[0] = prices.transfer_out[0] = np.inf
    placed = place_by_latency(graph, prices, blocks=blocks_of(graph))
    assert set(placed.placement) == {"cpu"}
    assert placed.gap == 0


def test_candidates_name_their_origin():
    graph = stack(40)
    prices = equal_prices(graph, 3, launch=0.0)
    names = [str(candidate.origin) for candidate in place_by_latency(graph, prices, blocks=blocks_of(graph)).candidates]
    assert any(name.startswith("one of 39 repeats: ") for name in names), names


def test_few_repeats_are_not_folded():
    for graph in (woven(60), stack(6)):
        prices = equal_prices(graph)
        assert place_repeats(graph, prices, supported(prices), blocks_of(graph)) is None
        assert place_by_latency(graph, prices, blocks=blocks_of(graph)).repeats == ()


@pytest.mark.sweep
def test_repeats_reduce_the_work():
    graph = stack(60)
    prices, blocks = equal_prices(graph), blocks_of(graph)
    plain = count_lines(lambda: place_by_latency(graph, prices))
    assert count_lines(lambda: place_by_latency(graph, prices, blocks=blocks)) < plain / 2
