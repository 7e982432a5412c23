"""Selection of candidates by sampled times, with a simulated clock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.engine import MARGIN, contest, decided, is_slower, still_in_question, twice, typical

SECONDS = st.floats(1e-6, 10.0)
ROUNDS = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(SECONDS, min_size=width, max_size=width), min_size=1, max_size=15)
)
"""Seconds of each candidate, by round."""


class Machine:
    """Candidates whose turns take `seconds(candidate, turn)` on a simulated clock."""

    def __init__(self, count, seconds):
        self.now, self.taken, self._seconds = 0.0, [0] * count, seconds
        self.turns = [lambda number=number: self._turn(number) for number in range(count)]

    def _turn(self, number):
        seconds = self._seconds(number, self.taken[number])
        self.taken[number] += 1
        self.now += 1e-3 * seconds
        return seconds

    def contest(self, simplest=None):
        return contest(self.turns, simplest or range(len(self.turns)), lambda: self.now)

    def twice(self, simplest=None):
        return twice(self.turns, simplest or range(len(self.turns)), lambda: self.now)


@given(ROUNDS)
def test_winner_is_never_clearly_slower_than_another(rounds):
    samples = [list(each) for each in zip(*rounds, strict=True)]
    outcome = decided(samples, range(len(samples)))
    assert outcome.seconds == tuple(map(typical, samples))
    assert outcome.seconds[outcome.winner] <= (1 + MARGIN) * min(outcome.seconds)
    assert len(still_in_question(samples)) >= 1


@given(ROUNDS, st.randoms(use_true_random=False))
def test_order_of_candidates_decides_only_ties(rounds, random):
    samples = [list(each) for each in zip(*rounds, strict=True)]
    order = list(range(len(samples)))
    random.shuffle(order)
    shuffled = [samples[number] for number in order]
    simplest = sorted(order, key=order.__getitem__)
    one = decided(samples, range(len(samples)))
    other = decided(shuffled, [order.index(number) for number in range(len(samples))])
    assert order[other.winner] == one.winner and other.is_sure == one.is_sure and len(simplest) == len(samples)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=15), st.floats(0, 0.5))
def test_is_slower_is_asymmetric(pairs, by):
    mine, others = zip(*pairs, strict=True)
    assert not (is_slower(mine, others, by) and is_slower(others, mine, by))
    assert not is_slower(mine, mine, by)
    if is_slower(mine, others, by):
        assert is_slower([2 * each for each in mine], others, by)


@given(st.lists(SECONDS, min_size=1, max_size=15), SECONDS)
def test_additive_noise_never_lowers_typical_time(turns, noise):
    at = len(turns) // 2
    assert typical([*turns[:at], turns[at] + noise, *turns[at + 1 :]]) >= typical(turns) >= min(turns)


@pytest.mark.parametrize(
    ("turns", "slower"), [(1, 11.0), (2, 4.5), (3, 1.6), (4, 1.3), (5, 1.01), (9, 1.01)]
)  # fmt: skip
def test_margin_widens_with_fewer_turns(turns, slower):
    assert is_slower([slower] * turns, [1.0] * turns)
    assert is_slower([1.05] * turns, [1.0] * turns) == (turns >= 5)


@pytest.mark.parametrize(("turns", "strays"), [(5, 0), (6, 0), (7, 1), (10, 1), (11, 2), (15, 3)])
def test_number_of_tolerated_outliers(turns, strays):
    mine = [1.5] * turns
    for count in range(strays + 2):
        mine[:count] = [0.5] * count
        assert is_slower(mine, [1.0] * turns) == (count <= strays)


def test_single_outlier_does_not_decide():
    machine = Machine(2, lambda number, turn: (1.0, 1.3)[number] * (0.5 if (number, turn) == (1, 2) else 1.0))
    outcome, samples = machine.contest()
    assert outcome.winner == 0 and outcome.is_sure and len(samples[0]) > 5


def test_shared_load_does_not_hide_the_faster_candidate():
    chance = Random(1)
    load = [chance.choice((1.0, 1.0, 3.0)) for _ in range(50)]
    outcome, doubt = Machine(2, lambda number, turn: (1.15, 1.0)[number] * load[turn]).twice()
    assert (outcome.winner, doubt) == (1, "")


def test_simplest_candidate_wins_if_others_are_hardly_faster():
    machine = Machine(3, lambda number, _: (1.01, 1.0, 1.5)[number])
    assert machine.contest()[0].winner == 0
    assert Machine(3, lambda number, _: (1.01, 1.0, 1.5)[number]).contest([1, 0, 2])[0].winner == 1
    assert Machine(3, lambda number, _: (1.04, 1.0, 1.5)[number]).contest()[0].winner == 1


def test_much_slower_candidate_gets_one_turn():
    machine = Machine(3, lambda number, _: (1.0, 20.0, 1.1)[number])
    machine.contest()
    assert machine.taken[1] == 1 < machine.taken[2]


def test_slow_candidates_get_few_turns():
    machine = Machine(2, lambda number, turn: (1e4, 1.01e4)[number] * (1 + 0.2 * (turn % 2)))
    machine.contest()
    assert machine.taken == [3, 3]


def test_indistinguishable_candidates_are_doubtful():
    chance = Random(2)
    machine = Machine(2, lambda *_: chance.uniform(1.0, 3.0))
    outcome, doubt = machine.twice()
    assert doubt and not outcome.is_sure and max(machine.taken) <= 30


def test_disagreeing_measurements_are_doubtful():
    # the second is slow at first, for longer than a contest
    machine = Machine(2, lambda number, turn: 1.0 if number == 0 or turn > 4 else 1.5)
    first, _ = Machine(2, lambda number, _: (1.0, 1.5)[number]).contest()
    assert first.winner == 0
    slow = Machine(2, lambda number, turn: 0.5 if number == 1 and turn > 2 else (1.0, 1.6)[number])
    outcome, doubt = slow.twice()
    assert doubt == "two measurements disagree" and outcome.winner == 1
    assert machine.twice()[0].winner == 0


@given(st.integers(0, 2**32), st.floats(1.2, 3.0), st.integers(0, 2))
def test_clearly_faster_candidate_wins_despite_additive_noise(seed, times, fastest):
    chance = Random(seed)

    def seconds(number, _):
        own = 1.0 if number == fastest else times
        return own * (1 + 0.02 * chance.random()) * (1 + 3 * (chance.random() < 0.05))

    outcome, _ = Machine(3, seconds).twice()
    assert outcome.winner == fastest
