"""The processors of this machine: which, how many may be used here, and how busy others keep them."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nnadapter.process.resources import memoize, new_lock, register_after_fork

_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")
_IDLE = (3, 4)
"""Columns of the first line of /proc/stat in which nobody computes: idle, and waiting for a disk."""
_COLUMNS = 8
"""Those after it are counted in others already."""
_SPARE = 0.3
"""Processors that others may use without being in the way."""


def usable() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def model_name() -> str:
    """Return the processor's name, where the system tells it in the way of Linux."""
    with suppress(OSError):
        lines = _CPUINFO.read_text(errors="replace").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ""


@memoize(1)
def machine_name() -> str:
    """Return what tells this machine from others, as far as speed goes: its architecture and the processor's name."""
    return f"{platform.machine()} {model_name() or platform.processor()}".strip()  # which may start a process to know


def machine_description() -> str:
    """Return by what a time is told to be of this machine: its name, and how many processors may be used here."""
    return f"{machine_name()}, {usable()} processors"


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds so far, of which differences count."""

    wall_seconds: float = field(default_factory=time.perf_counter)
    own_seconds: float = field(default_factory=lambda: own_seconds())
    """That processors computed for this process, and for those that compute for it."""
    total_seconds: float | None = field(default_factory=lambda: _busy_seconds())
    """That they computed for anybody; None where the system does not say."""


def is_crowded(start_load: Load, end_load: Load, processors: int, may_use: int) -> bool:
    """Return whether others left fewer processors than this process may use, between two moments.

    Args:
        start_load: the one.
        end_load: the other.
        processors: of the machine.
        may_use: of them, see `usable`.
    """
    return processors_unused_by_others(start_load, end_load, processors, may_use) < may_use - _SPARE


def processors_unused_by_others(start_load: Load, end_load: Load, processors: int, may_use: int) -> float:
    """Return how many processors others left of those that this process may use; see `is_crowded`."""
    if (
        start_load.total_seconds is None
        or end_load.total_seconds is None
        or end_load.wall_seconds <= start_load.wall_seconds
    ):
        return may_use
    external_load = (
        end_load.total_seconds - start_load.total_seconds - (end_load.own_seconds - start_load.own_seconds)
    ) / (end_load.wall_seconds - start_load.wall_seconds)
    return min(float(may_use), processors - external_load)


def seconds_of_process(process_id: int) -> float | None:
    """Return the seconds that processors computed for another process; None where it is gone, or nobody says.

    Source: Linux's clocks of processes, as clock_getcpuclockid numbers them.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime(~process_id << 3 | 2)
    except OSError:
        return None


class _Workers:
    """Processes that compute for this one; they belong to it, and not to one that is forked from it."""

    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        """Those -> the seconds that processors spent on that, as the system said last."""
        self._ended = 0.0
        """The same of those that have ended, together."""
        self._ending = deque[tuple[int, float | None]]()
        """Those that end, and what the system says of them then: a finalizer may say it, which waits for no lock."""
        self._lock = new_lock()
        register_after_fork(self)

    def begin(self, process_id: int) -> None:
        with self._lock:
            self._count_ended()  # the system may give their numbers again
            self._running[process_id] = 0.0

    def end(self, process_id: int) -> None:
        self._ending.append((process_id, seconds_of_process(process_id)))

    def seconds(self) -> float:
        with self._lock:
            self._count_ended()
            for process_id, recorded_seconds in self._running.items():
                self._running[process_id] = seconds_of_process(process_id) or recorded_seconds
            return self._ended + sum(self._running.values())

    def _count_ended(self) -> None:
        while self._ending:
            process_id, last = self._ending.popleft()
            recorded_seconds = self._running.pop(process_id, None)
            if recorded_seconds is not None:  # or somebody else said that it ends
                self._ended += max(recorded_seconds, last or 0.0)

    def after_fork(self) -> None:
        self._running.clear()
        self._ending.clear()
        self._ended = 0.0


_WORKERS = _Workers()


def own_seconds() -> float:
    """Return the seconds that processors computed so far for this process, and for those that compute for it."""
    return time.process_time() + _WORKERS.seconds()


def computes_for_this(process_id: int) -> None:
    """Count another process's seconds as this one's."""
    _WORKERS.begin(process_id)


def computes_no_more(process_id: int) -> None:
    """Count no further seconds of a process, which is about to end; finalizers may say so."""
    _WORKERS.end(process_id)


def _busy_seconds() -> float | None:
    try:
        ticks = [int(text) for text in _STAT.read_text().split("\n", 1)[0].split()[1 : _COLUMNS + 1]]
        return sum(tick for column, tick in enumerate(ticks) if column not in _IDLE) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
