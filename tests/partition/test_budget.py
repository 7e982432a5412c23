"""Choices under a budget, compared with brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from partition.by_cost.budget import Choices, Edge, choose_within_budget
from partition.graph import GraphError

scipy = pytest.importorskip("scipy")


def random_choices(seed: int, most_units: int = 8) -> tuple[Choices, float]:
    """Return units with three precisions on two devices, on a random graph, and a budget."""
    generator = np.random.default_rng(seed)
    units = int(generator.integers(1, most_units + 1))
    lane = np.array([0, 0, 0, 1, 1, 1])
    seconds = generator.uniform(0.1, 3, (units, 6))
    damage = np.tile([0.0, 1.0, 4.0], 2) * generator.lognormal(0, 2, (units, 1)) * generator.uniform(0.5, 1, (units, 6))
    seconds[generator.random((units, 6)) < 0.1] = np.inf
    seconds[:, 0] = np.where(np.isinf(seconds[:, 0]), 3.0, seconds[:, 0])
    edges = []
    for reader in range(1, units):
        for producer in generator.choice(reader, size=min(reader, int(generator.integers(1, 3))), replace=False):
            cost = float(generator.uniform(0, 1.5))
            edges.append(Edge(int(producer), reader, np.array([[0, cost], [cost * 0.7, 0]])))
    budget = float(damage.max(axis=1).sum() * generator.uniform(0, 0.6))
    return Choices(seconds, damage, lane, edges), budget


def cheapest(choices: Choices, budget: float) -> float:
    """Return the least time by trying everything."""
    units, count = choices.seconds.shape
    if units > 5:  # vectorized over the choices of the last units
        return _cheapest_by_arrays(choices, budget)
    best = np.inf
    for chosen in product(range(count), repeat=units):
        at = np.array(chosen)
        if choices.total_damage(at) <= budget:
            best = min(best, choices.total_seconds(at))
    return best


def _cheapest_by_arrays(choices: Choices, budget: float) -> float:
    units, count = choices.seconds.shape
    every = np.indices((count,) * units).reshape(units, -1)
    seconds = sum(choices.seconds[unit, every[unit]] for unit in range(units))
    damage = sum(choices.damage[unit, every[unit]] for unit in range(units))
    for edge in choices.edges:
        seconds = seconds + edge.seconds[choices.lane[every[edge.producer]], choices.lane[every[edge.reader]]]
    return float(seconds[damage <= budget].min(initial=np.inf))


def check(seed: int) -> None:
    choices, budget = random_choices(seed, most_units=6 if seed % 10 else 8)
    found = choose_within_budget(choices, budget)
    expected = cheapest(choices, budget)
    assert found is not None
    assert found.damage <= budget * (1 + 1e-9)
    assert found.seconds == pytest.approx(expected, rel=1e-6)
    assert found.bound <= found.seconds
    assert found.bound == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_choice_is_optimal(seed):
    check(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_choice_is_optimal_in_500_random_graphs(first):
    for seed in range(first, first + 50):
        check(seed)


def test_no_choice_within_the_budget():
    choices = Choices(np.ones((2, 1)), np.ones((2, 1)), np.zeros(1, np.int64))
    assert choose_within_budget(choices, 1.5) is None
    assert choose_within_budget(choices, 2.0) is not None


def test_zero_budget_allows_harmless_choices():
    choices = Choices(np.array([[3.0, 1.0, 2.0]]), np.array([[0.0, 1.0, 0.0]]), np.zeros(3, np.int64))
    found = choose_within_budget(choices, 0.0)
    assert found is not None
    assert found.choice.tolist() == [2]


def test_many_units_have_a_small_gap():
    generator = np.random.default_rng(1)
    units = 300
    seconds = generator.uniform(0.5, 1, (units, 1)) * np.array([1.0, 0.7, 0.5, 1.2, 0.6, 0.4])
    damage = generator.lognormal(0, 2, (units, 1)) * np.array([0, 0.1, 1, 0, 0.1, 1])
    edges = [Edge(at, at + 1, np.array([[0, 0.2], [0.2, 0]])) for at in range(units - 1)]
    choices = Choices(seconds, damage, np.array([0, 0, 0, 1, 1, 1]), edges)
    found = choose_within_budget(choices, float(damage.max(axis=1).sum()) * 0.05)
    assert found is not None
    assert found.gap <= 0.01


def test_contradictory_arrays_are_refused():
    with pytest.raises(GraphError, match="expected"):
        Choices(np.ones((2, 2)), np.ones((2, 1)), np.zeros(2, np.int64))
    with pytest.raises(GraphError, match="at least 0"):
        Choices(np.ones((1, 1)), np.array([[-1.0]]), np.zeros(1, np.int64))
