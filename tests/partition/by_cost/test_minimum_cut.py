from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.csgraph import maximum_flow

from partition.by_cost.elimination import (
    PairwiseCosts,
    eliminate,
    elimination_groups,
    next_neighbors,
    plan_elimination,
    turns,
    values,
)
from partition.by_cost.minimum_cuts import Network, Plans, minimum_cut
from partition.by_cost.pricing import topology_of
from tests.partition.generated_graphs import FAMILIES


def links(graph):
    """Return unique edges between atoms, with one more vertex for every value of several readers."""
    topology = topology_of(graph)
    readers = np.bincount(topology.read_value, minlength=len(topology.values))
    vertex = np.where(readers == 1, topology.producer, topology.atoms + np.arange(len(topology.values)))
    joined = {(a, b) for a, b in zip(topology.reader.tolist(), vertex[topology.read_value].tolist(), strict=True)}
    joined |= {(a, v) for a, v in zip(topology.producer.tolist(), vertex.tolist(), strict=True) if a >= 0}
    pairs = sorted({(min(pair), max(pair)) for pair in joined if min(pair) >= 0 and pair[0] != pair[1]})
    return topology.atoms + len(topology.values), *np.array(pairs, np.int64).reshape(-1, 2).T


@st.composite
def pairs_of(draw, most=9):
    """Draw a number of vertices and edges, from few to all."""
    count = draw(st.integers(1, most))
    every = [(one, two) for two in range(count) for one in range(two)]
    chosen = [pair for pair in every if draw(st.booleans())]
    return count, *np.array(chosen, np.int64).reshape(-1, 2).T


def random_costs(count, first, second, seed):
    source = np.random.default_rng(seed)
    edge = source.exponential(1, (2, len(first))) * (source.random((2, len(first))) < 0.8)
    return PairwiseCosts(source.exponential(1, (2, count)), first, second, edge)


def total(costs, chosen):
    own = costs.vertex[np.asarray(chosen, int), np.arange(len(chosen))].sum()
    one, two = np.asarray(chosen)[costs.first], np.asarray(chosen)[costs.second]
    return own + costs.edge[0, ~one & two].sum() + costs.edge[1, one & ~two].sum()


def best_of(costs):
    every = [np.array(chosen, np.bool_) for chosen in product((False, True), repeat=costs.vertex.shape[1])]
    return min(every, key=lambda chosen: total(costs, chosen))


@pytest.mark.slow
@settings(deadline=None)
@given(pairs_of(), st.integers(0, 1000))
def test_elimination_finds_the_minimum(case, seed):
    costs = random_costs(*case, seed)
    plan = plan_elimination(*case)
    reduced = eliminate(plan, costs)
    left = best_of(reduced.costs)
    chosen = values(plan, reduced, left)
    least = total(costs, best_of(costs))
    assert reduced.least + total(reduced.costs, left) == pytest.approx(least)
    assert total(costs, chosen) == pytest.approx(least)


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_remaining_costs_are_a_sum_over_edges(seed):
    """Cliques too large to eliminate, with chains between them that are not."""
    source = np.random.default_rng(seed)
    pairs = {(base + one, base + two) for base in (0, 10) for two in range(10) for one in range(two)}
    pairs |= {tuple(sorted(source.choice(60, 2, replace=False).tolist())) for _ in range(20)}
    pairs |= {(at, at + 1) for at in range(20, 59)}
    first, second = np.array(sorted(pairs), np.int64).T
    costs, plan = random_costs(60, first, second, seed), plan_elimination(60, first, second)
    reduced = eliminate(plan, costs)
    assert 0 < len(plan.remaining_vertices) < 60 and (reduced.costs.edge >= 0).all()
    for left in source.integers(0, 2, (8, len(plan.remaining_vertices))).astype(bool):
        chosen = values(plan, reduced, left)
        assert (chosen[plan.remaining_vertices] == left).all()
        assert reduced.least + total(reduced.costs, left) == pytest.approx(total(costs, chosen))
        for vertex in sorted(set(range(60)) - set(plan.remaining_vertices.tolist())):
            other = chosen.copy()
            other[vertex] = not other[vertex]
            assert total(costs, other) >= total(costs, chosen) * (1 - 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_elimination_groups_have_the_right_neighbors(family):
    count, first, second = links(FAMILIES[family](60))
    neighbors = {at: set() for at in range(count)}
    for one, two in zip(first.tolist(), second.tolist(), strict=True):
        neighbors[one].add(two)
        neighbors[two].add(one)
    groups = elimination_groups(count, first, second)
    turn = turns(groups, count)
    for group in groups:
        heirs = next_neighbors(group, turn) if group.neighbors.shape[1] else group.vertices
        for vertex, others, heir in zip(group.vertices.tolist(), group.neighbors.tolist(), heirs, strict=True):
            assert sorted(neighbors[vertex]) == others
            assert len(others) <= 2 or turn[heir] < len(groups)
            for other in others:
                neighbors[other] |= neighbors[vertex]
                neighbors[other] -= {vertex, other}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"woven"}))
def test_chain_like_graphs_are_eliminated(family):
    """Elimination takes few rounds with small tables."""
    for size in (500, 5000):
        plan = plan_elimination(*links(FAMILIES[family](size)))
        assert not len(plan.remaining_vertices)
        assert plan.size <= 40 * plan.count
        assert len(plan.steps) <= 20 * np.log2(plan.count)


@settings(deadline=None)
@given(pairs_of(7), st.integers(0, 1000), st.sampled_from([0.0, 0.3]))
def test_cuts_equal_brute_force(case, seed, unbounded):
    count, first, second = case
    costs = random_costs(*case, seed)
    free = np.random.default_rng(seed).random(costs.edge.shape) < unbounded
    edge = np.where(free, np.inf, costs.edge)
    ones, zeros, ends = np.ones(count, np.int64), np.zeros(count, np.int64), np.arange(count) + 2
    tail = np.concatenate([second + 2, first + 2, ends, ones])
    head = np.concatenate([first + 2, second + 2, zeros, ends])
    network = Network(tail, head, np.concatenate([*edge, costs.vertex[1], costs.vertex[0]]), count + 2)
    side, bound = minimum_cut(network, Plans())
    real = PairwiseCosts(costs.vertex, first, second, edge)
    least = total(real, best_of(real))
    assert side[1] and not side[0]
    assert total(real, side[2:]) == pytest.approx(least, rel=1e-6)
    assert least * (1 - 1e-6) <= bound <= least * (1 + 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_cuts_equal_the_maximum_flow_of_scipy(family):
    count, first, second = links(FAMILIES[family](400))
    source = np.random.default_rng(1)
    whole = source.integers(0, 100, 2 * len(first) + 2 * count).astype(np.int32)
    ones, zeros, ends = np.ones(count, np.int64), np.zeros(count, np.int64), np.arange(count) + 2
    tail = np.concatenate([second + 2, first + 2, ends, ones])
    head = np.concatenate([first + 2, second + 2, zeros, ends])
    ends = tail.astype(np.int32), head.astype(np.int32)  # scipy before 1.15 accepts no other type
    flow = maximum_flow(sparse.csr_array((whole, ends), (count + 2, count + 2)), 1, 0).flow_value
    side, bound = minimum_cut(Network(tail, head, whole.astype(float), count + 2), Plans())
    assert whole[side[tail] & ~side[head]].sum() == flow
    assert bound == pytest.approx(flow) and bound <= flow * (1 + 1e-12)


def test_equal_edges_share_a_plan():
    plans, (count, first, second) = Plans(), links(FAMILIES["residual"](50))
    plan = plans.of(count, first, second)
    assert plans.of(count, first.copy(), second.copy()) is plan
    for at in range(1, 9):  # as many as the cache holds
        plans.of(count + at, first, second)
    assert plans.of(count, first, second) is not plan
