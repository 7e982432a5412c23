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


def test_consecutive_failures_pause_a_device(clock):
    health = Health("acme")
    fail(health, times=IN_A_ROW - 1)
    assert health.is_troubled and health.may_try(ONE) and not health.text()
    fail(health)
    assert not health.may_try(ONE)
    assert (
        health.text()
        == "device 'acme' is paused after 3 failures in a row, and is tried again in 1 s; last failure: no"
    )


def test_success_resets_the_count_of_consecutive_failures(clock):
    health = Health("acme")
    for _ in range(10):
        fail(health, times=IN_A_ROW - 1)
        health.succeeded(ONE)
    assert not health.is_troubled and health.may_try(ONE)


def test_lost_device_is_paused_immediately(clock):
    health = Health("acme")
    fail(health, error=DeviceLostError("gone"))
    assert not health.may_try(OTHER) and "after a failure" in health.text()


def test_pauses_grow_exponentially_and_end_with_success(clock):
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


def test_only_one_run_tries_after_a_pause(clock):
    health = Health("acme")
    fail(health, times=IN_A_ROW)
    clock.now += FIRST_PAUSE
    assert [health.may_try(ONE) for _ in range(5)] == [True] + [False] * 4
    clock.now += FIRST_PAUSE
    assert health.may_try(ONE)


def test_only_failing_step_is_paused_if_others_succeed(clock):
    health = Health("acme")
    for _ in range(IN_A_ROW):
        fail(health, ONE)
        health.succeeded(OTHER)
    assert not health.may_try(ONE) and health.may_try(OTHER)
    assert not health.text() and health.text(ONE).startswith("this step of device 'acme' is paused")


def test_all_steps_of_a_failing_device_are_paused(clock):
    health = Health("acme")
    for number in range(IN_A_ROW):
        fail(health, (str(number),))
    assert not health.may_try(OTHER)


def test_no_pause_without_a_substitute(clock):
    health = Health("acme", pauses=False)
    fail(health, times=9, error=DeviceLostError("gone"))
    assert health.may_try(ONE) and not health.text()


def test_number_of_distinguished_failing_steps_is_bounded(clock):
    health = Health("acme")
    for number in range(1000):
        fail(health, (str(number),))
        health.succeeded(())
    assert len(health._troubles) <= 257


def test_only_one_thread_tries_after_a_pause(clock):
    health, barrier = Health("acme"), threading.Barrier(4)
    fail(health, times=IN_A_ROW)
    clock.now += FIRST_PAUSE

    def try_(_):
        barrier.wait(60)
        return sum(health.may_try(ONE) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(try_, range(4))) == 1
