"""Alternating measurements, with clocks that the test advances."""

from __future__ import annotations

import pytest

from nnadapter.costs import Stopwatch


class Clock:
    """Clock; the process's threads use processors until `awake_until`."""

    def __init__(self, awake_until=0.0):
        self.now, self.used, self.awake_until, self.runs = 0.0, 0.0, awake_until, 0
        self.started = []

    def pass_(self, seconds):
        self.used += max(0.0, min(seconds, self.awake_until - self.now))
        self.now += seconds

    def run(self, seconds):
        def run():
            self.started.append(self.now)
            self.now += seconds[min(self.runs, len(seconds) - 1)]
            self.runs += 1

        return run

    @property
    def watch(self):
        return Stopwatch(clock=lambda: self.now, busy=lambda: self.used, sleep=self.pass_)


def test_turn_begins_when_threads_are_idle():
    clock = Clock(awake_until=0.025)
    clock.watch.turn(clock.run([1.0]))
    assert 0.025 <= clock.started[0] <= 0.04


def test_waits_for_processor_time_counted_in_ticks():
    clock = Clock(awake_until=0.025)
    by_tick = Stopwatch(clock=lambda: clock.now, busy=lambda: clock.used - clock.used % 0.01, sleep=clock.pass_)
    by_tick.turn(clock.run([1.0]))
    assert 0.02 <= clock.started[0] <= 0.05


def test_waiting_for_busy_threads_ends():
    clock = Clock(awake_until=1e9)
    clock.watch.turn(clock.run([1.0]))
    assert clock.started[0] <= 0.2


@pytest.mark.parametrize(
    ("seconds", "figure", "runs"), [([9e-3, 1e-3], 1e-3, 21), ([1e-5], 1e-5, 51), ([0.5], 0.5, 1), ([0.015], 0.015, 3)]
)
def test_first_of_several_runs_is_ignored(seconds, figure, runs):
    clock = Clock()
    assert clock.watch.turn(clock.run(seconds)) == pytest.approx(figure)
    assert abs(clock.runs - runs) <= 1
