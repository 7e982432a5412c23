"""Runs that have to be done by some time, and the thread that tells them when it is over.

All runs of a session have the same time, so whoever comes later has to be done later: the thread sleeps to the first
end, or as long as a run that has not come yet would have. Nobody wakes it, so a run pays two steps in a dictionary. It
ends where nobody ran for so long. A run whose clock stood still meanwhile says so when it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import TIMEOUT_MAX, Lock, Thread
from typing import TYPE_CHECKING
from weakref import ReferenceType, finalize, ref

from nnadapter.errors import InvalidOptionError
from nnadapter.process.forking import new_lock, register_after_fork

if TYPE_CHECKING:
    import onnxruntime

ENTRY = "nnadapter.deadline_s"
"""Of run options: seconds that this run may take, in place of what its session says."""
Tell = Callable[[], float | None]
"""Told that the time is over. Returns when it is to be told instead, by `monotonic`, if it has more time."""


def deadline_of(options: onnxruntime.RunOptions | None) -> float | None:
    """Return the seconds that run options give a run; None where they say nothing of it.

    Raises:
        InvalidOptionError: they are no seconds.
        TypeError: they are no run options.
    """
    try:
        said = None if options is None else options.get_run_config_entry(ENTRY)
    except RuntimeError:  # there is no such entry
        return None
    except AttributeError:
        raise TypeError(f"run options are an onnxruntime.RunOptions, got {type(options).__name__}") from None
    if said is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(said)) < inf:
            return seconds
    raise InvalidOptionError(f"entry {ENTRY!r} of run options is a number of seconds above 0, got {said!r}")


class Deadlines:
    """The runs of one session. Usable from many threads.

    Args:
        seconds: that a run may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = new_lock()
        self._is_awake = False
        self._ends: dict[Tell, float] = {}
        self._asleep = Lock()
        """Held until there is nothing to watch over any more; then whoever watches takes it."""
        self._asleep.acquire()
        finalize(self, _let_go, self._asleep).atexit = False
        register_after_fork(self)

    def watch(self, tell: Tell) -> float:
        """Have `tell` called when the time is over, from another thread, and return when that is by `monotonic`.

        Who watched calls `forget`, or is told.
        """
        end = self._ends[tell] = time.monotonic() + self.seconds
        if not self._is_awake:
            self._wake()
        return end

    def forget(self, tell: Tell) -> None:
        """The run is done."""
        self._ends.pop(tell, None)

    def close(self) -> None:
        """Nobody comes any more. May be called again."""
        _let_go(self._asleep)

    def part(self) -> None:
        """In a process that was forked: neither the thread nor the runs are there."""
        self._is_awake = False
        self._ends.clear()

    def _wake(self) -> None:
        with self._lock:
            if not self._is_awake:
                self._is_awake = True
                watching = Thread(target=_look, args=(ref(self), self._asleep), name="nnadapter deadlines", daemon=True)
                watching.start()

    def _tell(self) -> float | None:
        """Tell those whose time is over; return seconds to the next end, None where nobody ran for so long."""
        if not self._goes_on():
            return None
        now = time.monotonic()
        for tell, end in list(self._ends.items()):
            if end <= now and self._ends.pop(tell, None) is not None and (later := tell()) is not None:
                self._ends[tell] = later  # if its run ended this moment, it is told once, and forgotten
        return max(0.0, min([end - now for end in list(self._ends.values())], default=self.seconds))

    def _goes_on(self) -> bool:
        if self._ends:
            return True
        with self._lock:
            # Before it is looked again: who comes meanwhile sees it, or is seen.
            self._is_awake = False
            self._is_awake = bool(self._ends)
            return self._is_awake


def _look(held: ReferenceType[Deadlines], asleep: Lock) -> None:
    """What the thread does; it keeps nothing alive, and ends with what it watches over."""
    while (deadlines := held()) is not None and (seconds := deadlines._tell()) is not None:
        del deadlines
        if asleep.acquire(timeout=min(seconds, TIMEOUT_MAX)):
            return


def _let_go(asleep: Lock) -> None:
    with suppress(RuntimeError):  # somebody was first
        asleep.release()
