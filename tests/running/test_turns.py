"""Turns on devices: one at a time, the earliest first."""

from __future__ import annotations

import threading
import time

from nnadapter.running.turns import Turns


def test_the_earliest_that_waits_comes_first():
    turns, order, waiting = Turns(), [], []
    turns.take("a", 0)
    turns.take("b", 0)

    def work(number):
        waiting.append(number)
        turns.take("a", number)
        order.append(number)
        turns.give_back("a")

    threads = [threading.Thread(target=work, args=(number,)) for number in (5, 2, 9, 1)]
    for thread in threads:
        thread.start()
    while len(turns._waiting.get("a", ())) < len(threads):
        time.sleep(0.001)
    turns.give_back("a")
    for thread in threads:
        thread.join()
    assert order == [1, 2, 5, 9]
    turns.take("a", 3)
    turns.give_back("a")
    turns.give_back("b")
