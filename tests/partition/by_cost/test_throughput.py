from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from partition import GraphError
from partition.by_cost.latency import place_by_latency, place_by_throughput
from partition.by_cost.pricing import Prices, device_seconds, price, topology_of
from tests.every import for_every_value
from tests.partition.generated_graphs import branches, chain, random_prices, residual, transformer, woven

TWO, THREE = ("npu", "cpu"), ("gpu", "npu", "cpu")


def load_of(graph, prices, placement, sharing=()):
    """Return the load of the busiest device; devices that share processors count as one."""
    seconds = dict(zip(prices.devices, device_seconds(graph, prices, placement).tolist(), strict=True))
    return max(
        [sum(seconds[each] for each in sharing), *(seconds[second] for second in seconds if second not in sharing)]
    )


def least_load(graph, prices, sharing=()):
    options = [np.flatnonzero(column).tolist() for column in np.isfinite(prices.run).T]
    labels = prices.devices
    placements = product(*options)
    return min(load_of(graph, prices, [labels[row] for row in rows], sharing) for rows in placements)


def even_prices(graph, *, launch=0.0, cross=0.0):
    values = topology_of(graph).values
    """Two equal devices; a transfer between atoms costs `cross` in each direction."""
    run, border = np.ones((2, len(graph.atoms))), np.full((2, len(values)), cross)
    border[:, [0, -1]] = 0.0
    return Prices(("a", "b"), "cpu", run, border, border.copy(), np.full(2, launch), values)


@pytest.mark.parametrize("make", [chain, branches, residual, woven])
@pytest.mark.parametrize("devices", [TWO, THREE])
@pytest.mark.parametrize("seed", range(3))
def test_few_placements_are_all_priced(make, devices, seed):
    graph = make(7 if devices is TWO else 5, seed)
    prices = random_prices(graph, seed, devices=devices, launch=0.2)
    result = place_by_throughput(graph, prices)
    assert result.stage == pytest.approx(least_load(graph, prices))
    assert result.bound <= result.stage


@pytest.mark.slow
@pytest.mark.parametrize("make", [chain, branches, residual, woven])
@pytest.mark.parametrize("devices", [TWO, THREE])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (1, 2))])
def test_search_is_close_to_the_optimum(make, devices, seed):
    graph = make(8, seed)
    prices = random_prices(graph, seed, devices=devices, launch=0.2)
    starts = [candidate.placement for candidate in place_by_latency(graph, prices).candidates]
    result = place_by_throughput(graph, prices, starts=starts, enumerate_few=False)
    least = least_load(graph, prices)
    assert result.bound <= least <= result.stage + 1e-12
    assert result.stage <= 1.2 * least


@for_every_value(
    make=(chain, branches, residual, woven),
    sharing=(("cpu", "npu"), ("cpu", "gpu"), ("cpu",), THREE),
    enumerate_few=(True, False),
)
def test_loads_of_devices_that_share_processors_add_up(make, sharing, enumerate_few):
    graph = make(5 if enumerate_few else 7, 1)
    prices = random_prices(graph, 1, devices=THREE, launch=0.2)
    starts = [candidate.placement for candidate in place_by_latency(graph, prices).candidates]
    result = place_by_throughput(graph, prices, sharing=sharing, starts=starts, enumerate_few=enumerate_few)
    least = least_load(graph, prices, sharing)
    assert result.stage == pytest.approx(load_of(graph, prices, result.placement, sharing))
    assert result.bound <= least <= result.stage + 1e-12
    assert result.stage <= (1 if enumerate_few else 1.2) * least + 1e-12
    assert sum(result.loads[device] for device in result.busiest) == pytest.approx(result.stage)


def test_one_device_is_best_if_all_share_processors():
    graph = chain(8)
    result = place_by_throughput(graph, even_prices(graph, launch=1.0), sharing=("a", "b"), enumerate_few=False)
    assert len(set(result.placement)) == 1
    assert (result.stage, result.busiest) == (9.0, ("a", "b"))


def test_loads_match_the_placement():
    graph = transformer(40)
    prices = random_prices(graph, 3, devices=THREE)
    result = place_by_throughput(graph, prices)
    seconds = device_seconds(graph, prices, result.placement)
    assert list(result.loads.values()) == pytest.approx(seconds.tolist())
    assert seconds.sum() == pytest.approx(price(graph, prices, result.placement))


@pytest.mark.parametrize("count", [10, 11, 200])
def test_even_work_is_halved(count):
    graph = chain(count)
    result = place_by_throughput(graph, even_prices(graph), enumerate_few=False)
    assert result.stage == (count + 1) // 2
    assert result.bound == pytest.approx(max(1.0, count / 2))


@pytest.mark.parametrize("enumerate_few", [True, False])
def test_expensive_transfers_keep_atoms_together(enumerate_few):
    graph = chain(8)
    result = place_by_throughput(graph, even_prices(graph, cross=100.0), enumerate_few=enumerate_few)
    assert len(set(result.placement)) == 1


@pytest.mark.slow
def test_atoms_are_placed_on_supporting_devices():
    graph = woven(60, 2)
    prices = random_prices(graph, 2, devices=THREE, supported=0.5)
    placement = place_by_throughput(graph, prices).placement
    rows = [prices.devices.index(label) for label in placement]
    assert np.isfinite(prices.run[rows, np.arange(len(rows))]).all()


def test_unsupported_atom_is_an_error():
    graph = chain(3)
    prices = even_prices(graph)
    prices.run[:, 1] = np.inf
    with pytest.raises(GraphError, match="none of the devices"):
        place_by_throughput(graph, prices)


def test_nothing_to_place():
    graph = chain(0)
    nothing = Prices(("a",), "a", np.zeros((1, 0)), np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1), ())
    result = place_by_throughput(graph, nothing)
    assert (result.placement, result.stage, result.bound) == ((), 0.0, 0.0)
