"""Whose turn it is on each device, where several runs of one plan follow each other: one run at a time, earliest first.

Each device then works on another input, and never on two at once, which would only take its memory and its caches
twice. A run that waits for a device has given back the one before, so none waits for a run that waits for it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from threading import Lock


class Turns:
    """The devices of some runs that follow each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken: set[str] = set()
        self._waiting: dict[str, list[tuple[int, Lock]]] = {}

    def take(self, device: str, number: int) -> bool:
        """Wait until the device is free, and no run with a lower number waits for it; then it is taken.

        Returns:
            It was not free at once.
        """
        with self._lock:
            if device not in self._taken:
                self._taken.add(device)
                return False
            turn = Lock()
            turn.acquire()
            heappush(self._waiting.setdefault(device, []), (number, turn))
        turn.acquire()
        return True

    def give_back(self, device: str) -> None:
        """Give a device that was taken to who waits for it."""
        with self._lock:
            if waiting := self._waiting.get(device):
                heappop(waiting)[1].release()
            else:
                self._taken.remove(device)
