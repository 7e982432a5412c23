"""Processors of this machine: names, usable number, and load by other processes."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from nnadapter.process.resources import memoize, new_lock, register_after_fork
from nnadapter.records import dataclass, field

_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")
_IDLE = (3, 4)
"""Idle columns of /proc/stat: idle, and waiting for a disk."""
_COLUMNS = 8
_SPARE = 0.3
"""Number of processors that other processes may use without disturbing measurements."""


def usable() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def model_name() -> str:
    """Return the processor's name on Linux; otherwise empty."""
    with suppress(OSError):
        lines = _CPUINFO.read_text(errors="replace").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ""


@memoize(1)
def machine_name() -> str:
    """Return architecture and processor name, which determine speed."""
    return f"{platform.machine()} {model_name() or platform.processor()}".strip()  # `processor()` may start a process


def machine_description() -> str:
    """Return machine name and usable processors, the key of measured times."""
    return f"{machine_name()}, {usable()} processors"


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time so far; only differences are meaningful."""

    wall_seconds: float = field(default_factory=time.perf_counter)
    own_seconds: float = field(default_factory=lambda: own_seconds())
    total_seconds: float | None = field(default_factory=lambda: _busy_seconds())


def is_crowded(start_load: Load, end_load: Load, processors: int, may_use: int) -> bool:
    """Return whether other processes left fewer than `may_use` processors to this process between two loads."""
    return processors_unused_by_others(start_load, end_load, processors, may_use) < may_use - _SPARE


def processors_unused_by_others(start_load: Load, end_load: Load, processors: int, may_use: int) -> float:
    """Return the number of processors that other processes left unused between two loads, at most `may_use`."""
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
    """Return the processor time of another process; None if unknown.

    Source: process clocks of Linux, numbered as by clock_getcpuclockid.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime(~process_id << 3 | 2)
    except OSError:
        return None


class _Workers:
    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        self._ended = 0.0
        self._ending = deque[tuple[int, float | None]]()
        """Lock-free queue of ending workers with their last processor time: finalizers append to it."""
        self._lock = new_lock()
        register_after_fork(self)

    def begin(self, process_id: int) -> None:
        with self._lock:
            self._count_ended()
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
            if recorded_seconds is not None:
                self._ended += max(recorded_seconds, last or 0.0)

    def after_fork(self) -> None:
        self._running.clear()
        self._ending.clear()
        self._ended = 0.0


_WORKERS = _Workers()


def own_seconds() -> float:
    """Return the processor time of this process and its workers."""
    return time.process_time() + _WORKERS.seconds()


def computes_for_this(process_id: int) -> None:
    """Count the processor time of a worker process in `own_seconds` from now on."""
    _WORKERS.begin(process_id)


def computes_no_more(process_id: int) -> None:
    """Stop counting a worker process that is about to end; safe in finalizers."""
    _WORKERS.end(process_id)


def _busy_seconds() -> float | None:
    try:
        ticks = [int(text) for text in _STAT.read_text().split("\n", 1)[0].split()[1 : _COLUMNS + 1]]
        return sum(tick for column, tick in enumerate(ticks) if column not in _IDLE) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
