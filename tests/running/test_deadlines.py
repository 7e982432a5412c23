"""The thread that watches the deadlines of a session's runs."""

from __future__ import annotations

import threading
import time

import pytest

from nnadapter.engine import Deadlines

SECONDS = 30
NAME = "nnadapter deadlines"


def watching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == NAME}


def let_go(deadlines: list[Deadlines]) -> None:
    deadlines.clear()


def closed(deadlines: list[Deadlines]) -> None:
    deadlines[0].close()
    deadlines[0].close()


@pytest.mark.parametrize("end", [let_go, closed])
def test_thread_ends_with_the_session_before_any_deadline(end):
    before, deadlines = watching(), [Deadlines(3600.0)]

    def tell():
        return None

    deadlines[0].watch(tell)
    deadlines[0].forget(tell)
    (thread,) = watching() - before
    end(deadlines)
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_expired_callback_is_repeated_and_idle_thread_ends():
    before, told, deadlines = watching(), [], Deadlines(0.05)

    def tell():
        told.append(time.monotonic())
        return time.monotonic() + 0.05 if len(told) == 1 else None

    end = deadlines.watch(tell)
    (thread,) = watching() - before
    thread.join(SECONDS)
    assert not thread.is_alive() and len(told) == 2 and end <= told[0] <= told[1] - 0.05
