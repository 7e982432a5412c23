"""Turns on devices: one run at a time, the earliest first."""

from __future__ import annotations

import threading
import time

from nnadapter.engine import Turns


def never():
    return False


def test_earliest_waiting_run_gets_the_device():
    turns, order, waiting = Turns(), [], []
    turns.take("a", 0, never)
    turns.take("b", 0, never)

    def work(number):
        waiting.append(number)
        turns.take("a", number, never)
        order.append(number)
        turns.release("a")

    threads = [threading.Thread(target=work, args=(number,)) for number in (5, 2, 9, 1)]
    for thread in threads:
        thread.start()
    while len(turns._waiting.get("a", ())) < len(threads):
        time.sleep(0.001)
    turns.release("a")
    for thread in threads:
        thread.join()
    assert order == [1, 2, 5, 9]
    turns.take("a", 3, never)
    turns.release("a")
    turns.release("b")


def test_stopped_run_leaves_the_queue():
    turns, over, taken = Turns(), threading.Event(), []
    assert turns.take_free("a")
    assert not turns.take_free("a")
    thread = threading.Thread(target=lambda: taken.append(turns.take("a", 1, over.is_set)), daemon=True)
    thread.start()
    while not turns._waiting.get("a"):
        time.sleep(0.001)
    over.set()
    thread.join(30)
    assert taken == [False]
    turns.release("a")
    assert turns.take_free("a")
