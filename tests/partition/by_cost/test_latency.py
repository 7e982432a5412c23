import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition import GraphError
from partition.by_cost import search
from partition.by_cost.latency import BoundKind, place_by_latency
from partition.by_cost.pricing import all_on, price
from partition.by_cost.search import PlacedOnTwo
from tests.partition.brute_force import cheapest_cost
from tests.partition.generated_graphs import FAMILIES, chain, linked, random_prices, transformer, woven
from tests.partition.small_graphs import graph_of, grouped_graphs

TIGHT = 1 + 1e-9


def assert_lawful(graph, prices, placed):
    """Check that candidates are distinct, runnable, correctly priced and sorted, and include both baselines."""
    assert placed.candidates[0].placement == placed.placement
    assert len({candidate.placement for candidate in placed.candidates}) == len(placed.candidates)
    costs = [candidate.cost for candidate in placed.candidates]
    assert costs == sorted(costs)
    assert costs[0] == placed.cost
    for candidate in placed.candidates:
        assert np.isfinite(candidate.cost)
        assert candidate.cost == pytest.approx(price(graph, prices, candidate.placement))
    found = {candidate.placement for candidate in placed.candidates}
    supported = tuple(
        next(device for row, device in enumerate(prices.devices) if np.isfinite(prices.run[row, atom]))
        for atom in range(len(graph.atoms))
    )
    for baseline in (supported, (prices.host,) * len(graph.atoms)):
        assert baseline in found or np.isinf(price(graph, prices, baseline))


@pytest.mark.parametrize(
    "launch",
    [
        2.0,
        pytest.param(0.0, marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.sweep) for each in (0.5, 6.0)),
    ],
)
@pytest.mark.parametrize("enumerate_few", [True, False])
def test_two_devices_against_brute_force(launch, enumerate_few):
    excess = []
    for seed in range(25):
        graph = woven(1 + seed % 9, seed, reach=5)
        prices = random_prices(graph, seed, launch=launch)
        placed = place_by_latency(graph, prices, enumerate_few=enumerate_few)
        best = cheapest_cost(graph, prices)
        assert_lawful(graph, prices, placed)
        assert placed.bound <= best * TIGHT
        assert placed.cost >= best / TIGHT
        excess.append(placed.cost / best - 1)
    assert np.mean(excess) <= 0.005


@pytest.mark.slow
@given(grouped_graphs(), st.integers(0, 1000), st.booleans(), st.sampled_from([0.0, 1.0]))
def test_values_that_cannot_be_transferred(case, seed, enumerate_few, everywhere):
    graph, _ = case
    prices = random_prices(graph, seed, devices=("a", "b"), forbidden=0.3, supported=0.9)
    if not everywhere:  # no device supports everything
        run = prices.run.copy()
        run[1, np.isfinite(run[0]) & (np.arange(run.shape[1]) % 3 == 0)] = np.inf
        prices = replace(prices, run=run)
    best = cheapest_cost(graph, prices)
    if np.isinf(best):
        with pytest.raises(GraphError, match="cannot cross"):
            place_by_latency(graph, prices, enumerate_few=enumerate_few)
        return
    placed = place_by_latency(graph, prices, enumerate_few=enumerate_few)
    if graph.atoms:
        assert_lawful(graph, prices, placed)
    assert placed.bound <= best * TIGHT
    assert placed.cost <= max(best * 1.2, best + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [*(pytest.param(each, marks=pytest.mark.sweep) for each in (0.0, 0.5, 6.0)), 2.0])
def test_three_devices_against_brute_force(launch):
    excess = []
    for seed in range(12):
        graph = woven(1 + seed % 6, seed, reach=5)
        prices = random_prices(graph, seed, devices=("a", "b", "cpu"), launch=launch)
        placed = place_by_latency(graph, prices)
        best = cheapest_cost(graph, prices)
        assert_lawful(graph, prices, placed)
        assert len(graph.atoms) < 5 or placed.bound_kind is BoundKind.DECOMPOSITION
        assert placed.bound <= best * TIGHT
        excess.append(placed.cost / best - 1)
    assert np.mean(excess) <= 0.005


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_larger_graphs_satisfy_the_invariants(family):
    graph = FAMILIES[family](300)
    prices = random_prices(graph, 1, launch=3.0)
    placed = place_by_latency(graph, prices)
    assert_lawful(graph, prices, placed)
    assert placed.gap < 0.05
    assert placed == place_by_latency(FAMILIES[family](300), prices)


def test_unproven_gap_is_reported_by_the_bound(monkeypatch):
    """The bound is no more than a weak search proved, despite small costs."""
    graph = chain(60)
    prices = random_prices(graph, 5, launch=2.0)
    few = {name: getattr(prices, name) * 1e-6 for name in ("run", "transfer_in", "transfer_out", "launch")}
    monkeypatch.setattr(search, "place_on_two", lambda graph, prices, starts: PlacedOnTwo(starts, 1e-6))
    placed = place_by_latency(graph, replace(prices, **few))
    assert placed.bound <= 1e-6 < placed.cost < 1.0


def test_chains_are_solved_exactly():
    """The oracle is a dynamic program over the last label: a chain has a launch at each change of label."""
    graph = chain(60)
    prices = random_prices(graph, 5, launch=2.0)
    here = prices.run[:, 0] + prices.transfer_in[:, 0] + prices.launch
    for atom in range(1, 60):
        there = here[::-1] + prices.transfer_out[::-1, atom] + prices.transfer_in[:, atom] + prices.launch
        here = np.minimum(here, there) + prices.run[:, atom]
    best = min(here + prices.transfer_out[:, 60])
    placed = place_by_latency(graph, prices)
    assert placed.cost == pytest.approx(best)
    assert placed.bound_kind is BoundKind.CUT
    assert placed.bound <= best


def test_host_may_be_cheapest():
    graph = transformer(100)
    prices = random_prices(graph, 3, launch=1000.0)
    placed = place_by_latency(graph, prices)
    assert set(placed.placement) == {"cpu"}
    assert placed.candidates[0].origin == all_on("cpu")
    assert placed.gap == 0


def test_devices_that_support_nothing_are_ignored():
    graph = woven(6)
    prices = random_prices(graph, devices=("a", "dead", "cpu"), supported=0.9)
    prices.run[1] = np.inf
    placed = place_by_latency(graph, prices)
    assert placed.bound_kind is BoundKind.ENUMERATION
    assert placed.cost == pytest.approx(cheapest_cost(graph, prices))
    alone = prices.of_rows([2])
    assert place_by_latency(graph, alone).bound_kind is BoundKind.ONE_DEVICE
    assert place_by_latency(graph, alone).gap == 0


def test_nothing_to_place():
    graph = graph_of([])
    assert place_by_latency(graph, random_prices(graph)).placement == ()


def test_atoms_without_a_device_are_named():
    graph = chain(3)
    prices = random_prices(graph)
    prices.run[:, 1] = np.inf
    with pytest.raises(GraphError, match=r"none of the devices \['npu', 'cpu'\] supports 'n1' \(Sum\); end the list"):
        place_by_latency(graph, prices)


def test_error_names_values_that_cannot_be_transferred():
    graph = linked([set(), {0}])
    prices = random_prices(graph, supported=1.0)
    prices.run[1, 1] = prices.run[0, 0] = np.inf
    prices.transfer_in[0, prices.values.index("v0")] = np.inf
    with pytest.raises(GraphError, match=r"values 'v0' cannot cross between devices"):
        place_by_latency(graph, prices)


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(GraphError, match=r"needs scipy, .* pip install 'nnadapter\[latency\]'"):
        place_by_latency(chain(2), random_prices(chain(2)))
