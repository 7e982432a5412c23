"""False alarm rate and detection delay of the sequential drift test."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.accuracy import BETWEEN_FALSE_ALARMS, RIGHT, WRONG, Drift


def alarms(share, checks, seed):
    """Return the number of alarms; an alarm resets the test."""
    drift, count = Drift(), 0
    for is_beyond in np.random.default_rng(seed).random(checks) < share:
        if drift.add(is_beyond=bool(is_beyond)):
            drift, count = Drift(), count + 1
    return count


def test_three_deviations_in_a_row_raise_an_alarm():
    drift = Drift()
    assert [drift.add(is_beyond=True) for _ in range(3)] == [False, False, True] and drift.checks == 3


def test_right_steps_raise_no_alarm():
    assert alarms(0.0, 10_000, 0) == 0
    assert sum(alarms(RIGHT, 200_000, seed) for seed in range(2)) <= 2


@pytest.mark.sweep
def test_false_alarm_rate():
    """20 million simulated checks that exceed the tolerance as often as a correct step may."""
    count = sum(alarms(RIGHT, 1_000_000, seed) for seed in range(20))
    print(f"{count} false alarms in 20,000,000 checks; at most {20e6 / BETWEEN_FALSE_ALARMS:g} are expected")
    assert count <= 20e6 / BETWEEN_FALSE_ALARMS


@pytest.mark.parametrize(("share", "most"), [(1.0, 3), (0.5, 40), (WRONG, 400)])
def test_wrong_step_is_detected_soon(share, most):
    random = np.random.default_rng(1)
    for _ in range(100):
        drift = Drift()
        assert any(drift.add(is_beyond=bool(random.random() < share)) for _ in range(most))
