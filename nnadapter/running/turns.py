"""Whose turn it is on each device, where several runs of one plan follow each other: one run at a time, earliest first.

Each device then works on another input, and never on two at once, which would only take its memory and its caches
twice. A run that waits for a device has given back the one before, so none waits for a run that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from threading import Lock

from nnadapter.process.forking import new_lock

_LOOK_SECONDS = 0.005
"""How often one that waits asks whether it still wants to."""


class Turns:
    """The devices of some runs that follow each other."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._taken: set[str] = set()
        self._waiting: dict[str, list[tuple[int, Lock]]] = {}

    def take_free(self, device: str) -> bool:
        """Take the device if nobody has it."""
        with self._lock:
            is_free = device not in self._taken
            self._taken.add(device)
            return is_free

    def take(self, device: str, number: int, is_over: Callable[[], bool]) -> bool:
        """Wait until the device is free, and no run with a lower number waits for it; then it is taken.

        Args:
            device: which.
            number: of the run; no other has it.
            is_over: the run does not want the device any more.

        Returns:
            It is taken; not so where `is_over` came first.
        """
        with self._lock:
            if device not in self._taken:
                self._taken.add(device)
                return True
            turn = Lock()
            turn.acquire()
            entry = number, turn
            heappush(self._waiting.setdefault(device, []), entry)
        while not turn.acquire(timeout=_LOOK_SECONDS):
            if is_over() and self._withdrawn(device, entry):
                return False
        return True

    def _withdrawn(self, device: str, entry: tuple[int, Lock]) -> bool:
        """It waits no longer; not so where its turn has come meanwhile."""
        with self._lock:
            waiting = self._waiting[device]
            if entry not in waiting:
                return False
            waiting.remove(entry)
            heapify(waiting)
            return True

    def give_back(self, device: str) -> None:
        """Give a device that was taken to who waits for it."""
        with self._lock:
            if waiting := self._waiting.get(device):
                heappop(waiting)[1].release()
            else:
                self._taken.remove(device)
