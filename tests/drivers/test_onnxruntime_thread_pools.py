"""Limit on the number of sessions with thread pools."""

from __future__ import annotations

import gc

import pytest

from nnadapter.drivers.onnxruntime import most_pools, not_counting, pool_permit, pools_held, program


def test_permits_are_limited_and_returned():
    gc.collect()
    permits = list(iter(pool_permit, None))
    assert pools_held() == most_pools()
    permits.pop()
    assert pool_permit() is not None  # released at once
    permits.append(pool_permit())
    assert pool_permit() is None


def test_measured_session_ignores_permits_of_rivals():
    gc.collect()
    rivals = list(iter(pool_permit, None))
    with not_counting(len(rivals)):
        permits = list(iter(pool_permit, None))
        with not_counting(-1):  # some counted sessions have closed
            assert pool_permit() is None
    assert len(permits) == len(rivals)
    assert pool_permit() is None
    rivals.clear()
    assert (pool_permit() is None) == (pools_held() == most_pools())


@pytest.mark.parametrize(("processors", "most"), [(1, 256), (2, 128), (16, 16), (32, 8), (96, 8)])
def test_threads_of_a_process_are_bounded(processors, most, monkeypatch):
    monkeypatch.setattr(program, "usable", lambda: processors)
    gc.collect()
    initial = pools_held()  # by other sessions of this process
    permits = list(iter(pool_permit, None))
    assert len(permits) == most - initial
