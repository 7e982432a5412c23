from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partition.by_cost.minimum_cuts import along_paths, costliest_path, two_way
from partition.by_cost.pricing import price, topology_of
from tests.partition.generated_graphs import random_prices, woven
from tests.partition.small_graphs import fewest_turns, grouped_graphs, long_graph, placed_graphs


def without_launches(topology, prices, rows, active=None):
    """Sum up runs and one transfer per value and direction; -1 is a device outside the pair."""
    total = sum(prices.run[row, atom] for atom, row in enumerate(rows) if row >= 0)
    for at, maker in enumerate(topology.producer):
        made = rows[maker] if maker >= 0 else -1
        readers = {rows[atom] for atom in topology.reader[topology.read_value == at]}
        total += sum(prices.transfer_in[row, at] for row in readers - {made, -1})
        if made >= 0 and (topology.output[at] or readers - {made}):
            total += prices.transfer_out[made, at]
    return total


@settings(deadline=None)  # importing scipy takes time
@given(grouped_graphs(), st.integers(0, 1000), st.sampled_from([0.0, 0.3]), st.booleans())
def test_cut_equals_the_minimum_over_all_placements(case, seed, forbidden, some):
    graph, _ = case
    prices = random_prices(graph, seed, forbidden=forbidden)
    topology = topology_of(graph)
    active = np.random.default_rng(seed).random(topology.atoms) < (0.7 if some else 1.1)
    choices = [(0, 1) if on else (-1,) for on in active]
    best = min(without_launches(topology, prices, rows) for rows in product(*choices))
    result = two_way(topology, prices, (0, 1), active)
    if np.isinf(best):
        assert result is None
        return
    reached = without_launches(topology, prices, np.where(active, result.second.astype(int), -1))
    assert result.bound <= best * (1 + 1e-12) and reached <= best * (1 + 1e-6)
    assert result.bound == pytest.approx(best, rel=1e-6)
    assert not result.second[~active].any()
    assert two_way(topology, prices, (1, 0), active).bound == pytest.approx(best, rel=1e-6)


def test_large_sums_do_not_wrap():
    graph = woven(5000)
    prices = random_prices(graph)
    topology = topology_of(graph)
    result = two_way(topology, prices, (0, 1))
    true = without_launches(topology, prices, result.second.astype(int))
    assert true * (1 - 1e-4) < result.bound <= true


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1e12])
def test_cuts_do_not_depend_on_the_unit(scale):
    graph = woven(40)
    prices = random_prices(graph)
    topology = topology_of(graph)
    rows = two_way(topology, prices, (0, 1)).second
    scaled = type(prices)(
        prices.devices,
        "cpu",
        prices.run * scale,
        prices.transfer_in * scale,
        prices.transfer_out * scale,
        prices.launch,
        prices.values,
    )
    result = two_way(topology, scaled, (0, 1))
    assert result.bound <= without_launches(topology, scaled, rows.astype(int)) * (1 + 1e-12)
    assert scale < 1e-100 or np.array_equal(result.second, rows)


@given(placed_graphs())
def test_path_counts_only_necessary_launches(case):
    graph, placement = case
    rows = np.array(["ab".index(label) for label in placement], np.int64)
    if not len(rows):
        return
    for launch in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]):
        path = costliest_path(graph, rows, np.array(launch))
        assert all(before in graph.atom_predecessors[after] for before, after in pairwise(path))
        runs = [rows[path[0]], *(rows[b] for a, b in pairwise(path) if rows[a] != rows[b])]
        only = {(1.0, 0.0): "a", (0.0, 1.0): "b"}.get(tuple(launch))
        assert sum(launch[row] for row in runs) <= fewest_turns(graph, placement, only)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_launches_along_paths_are_a_lower_bound(seed, number):
    graph = woven(8, seed, reach=4)
    prices = random_prices(graph, seed, supported=1.0)
    source = np.random.default_rng(seed)
    rows = source.integers(0, 2, (number, 8))
    paths = [costliest_path(graph, row, prices.launch) for row in rows]
    result = two_way(topology_of(graph), prices, (0, 1), surcharge=along_paths(paths, prices.launch, 8))
    best = min(price(graph, prices, [prices.devices[row] for row in each]) for each in product((0, 1), repeat=8))
    assert result.bound <= best * (1 + 1e-12)


def test_the_longest_of_the_costliest_paths():
    graph, _ = long_graph(300)
    path = costliest_path(graph, np.zeros(300, np.int64), np.ones(2))
    depth = [0] * 300
    for atom, predecessors in enumerate(graph.atom_predecessors):
        depth[atom] = 1 + max((depth[before] for before in predecessors), default=0)
    assert len(path) == max(depth)
