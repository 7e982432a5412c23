"""Pauses of devices that keep failing, and retries, on a simulated clock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnadapter.engine import FIRST_PAUSE, IN_A_ROW, LONGEST_PAUSE, Health, plan_devices
from nnadapter.errors import DeviceLostError, ExecutionError

ONE, OTHER = ("y",), ("z",)


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(plan_devices, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 100.0)
    return Clock


def fail(health, step=ONE, times=1, error=None):
    for _ in range(times):
        health.failed(step, error or ExecutionError("no"))


def test_after_some_failures_in_a_row_there_is_a_pause(clock):
    health = Health("acme")
    fail(health, times=IN_A_ROW - 1)
    assert health.is_troubled and health.may_try(ONE) and not health.text()
    fail(health)
    assert not health.may_try(ONE)
    assert (
        health.text()
        == "device 'acme' is paused after 3 failures in a row, and is tried again in 1 s; last failure: no"
    )


def test_what_goes_well_between_makes_it_none_in_a_row(clock):
    health = Health("acme")
    for _ in range(10):
        fail(health, times=IN_A_ROW - 1)
        health.succeeded(ONE)
    assert not health.is_troubled and health.may_try(ONE)


def test_a_lost_device_rests_at_once(clock):
    health = Health("acme")
    fail(health, error=DeviceLostError("gone"))
    assert not health.may_try(OTHER) and "after a failure" in health.text()


def test_pauses_grow_up_to_the_longest_and_end_when_it_goes_well(clock):
    health, pauses = Health("acme"), []
    fail(health, times=IN_A_ROW)
    for _ in range(12):
        began = clock.now
        while not health.may_try(ONE):
            clock.now += FIRST_PAUSE / 2
        pauses.append(clock.now - began)
        fail(health)
    assert pauses == sorted(pauses) and pauses[:4] == [1, 2, 4, 8] and pauses[-1] == LONGEST_PAUSE
    clock.now += LONGEST_PAUSE
    assert health.may_try(ONE)
    health.succeeded(ONE)
    assert not health.is_troubled and not health.text()
    fail(health, times=IN_A_ROW)
    clock.now += FIRST_PAUSE
    assert health.may_try(ONE)


def test_one_run_tries_at_the_end_of_a_pause_and_if_it_never_says_another_one_later(clock):
    health = Health("acme")
    fail(health, times=IN_A_ROW)
    clock.now += FIRST_PAUSE
    assert [health.may_try(ONE) for _ in range(5)] == [True] + [False] * 4
    clock.now += FIRST_PAUSE
    assert health.may_try(ONE)


def test_a_step_rests_alone_where_others_of_its_device_go_well(clock):
    health = Health("acme")
    for _ in range(IN_A_ROW):
        fail(health, ONE)
        health.succeeded(OTHER)
    assert not health.may_try(ONE) and health.may_try(OTHER)
    assert not health.text() and health.text(ONE).startswith("this step of device 'acme' is paused")


def test_steps_of_a_device_that_fails_rest_together(clock):
    health = Health("acme")
    for number in range(IN_A_ROW):
        fail(health, (str(number),))
    assert not health.may_try(OTHER)


def test_where_nothing_may_take_its_place_it_is_tried_each_time(clock):
    health = Health("acme", pauses=False)
    fail(health, times=9, error=DeviceLostError("gone"))
    assert health.may_try(ONE) and not health.text()


def test_failing_steps_are_told_apart_up_to_a_number(clock):
    health = Health("acme")
    for number in range(1000):
        fail(health, (str(number),))
        health.succeeded(())
    assert len(health._troubles) <= 257


def test_threads_agree_on_who_tries(clock):
    health, barrier = Health("acme"), threading.Barrier(4)
    fail(health, times=IN_A_ROW)
    clock.now += FIRST_PAUSE

    def try_(_):
        barrier.wait(60)
        return sum(health.may_try(ONE) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(try_, range(4))) == 1
