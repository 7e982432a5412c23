"""Runs that contradict a measurement, with simulated times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.engine import BLOCK, BLOCKS, Promise, Watch


def broken_after(seconds, promise, most=10 * BLOCK * BLOCKS):
    """Return after how many sequential runs of `seconds(run)` the promise is broken; None if never."""
    watch, now = Watch(promise), 0.0
    for run in range(most):
        now += seconds(run)
        if watch.is_broken_by(seconds(run), now):
            return run + 1
    return None


MEASURED = Promise(seconds=1e-3, rival_seconds=1.5e-3)


@pytest.mark.parametrize(
    ("seconds", "is_broken"),
    [(1e-3, False), (1.4e-3, False), (1.8e-3, False), (2e-3, True), (0.8e-3, False), (0.7e-3, True)],
)
def test_constant_run_times_that_break_a_promise(seconds, is_broken):
    assert broken_after(lambda _: seconds, MEASURED) == (BLOCK * BLOCKS if is_broken else None)


def test_one_fast_block_keeps_the_promise():
    assert broken_after(lambda run: 1e-3 if run // BLOCK % BLOCKS == 0 else 9e-3, MEASURED) is None


@given(st.lists(st.floats(1e-3, 1.0), min_size=BLOCK // 4 + 1))
def test_some_fast_runs_per_block_keep_the_promise(others):
    assert broken_after(lambda run: 1e-3 if run % BLOCK < BLOCK // 2 else others[run % len(others)], MEASURED) is None


def test_promise_without_a_rival_breaks_only_if_faster():
    assert broken_after(lambda _: 9.0, Promise(seconds=1e-3)) is None
    assert broken_after(lambda _: 1e-4, Promise(seconds=1e-3)) == BLOCK * BLOCKS


def test_microsecond_differences_keep_the_promise():
    assert broken_after(lambda _: 12e-6, Promise(seconds=20e-6, rival_seconds=30e-6)) is None


def test_overlapping_runs_are_ignored():
    watch = Watch(MEASURED)
    # two threads, each with a run every 9 ms, offset by half a run
    assert not any(watch.is_broken_by(9e-3, 4.5e-3 * run) for run in range(1000))
