"""Turns of runs that are timed: each begins when the threads of the one before rest, and gives one figure.

Threads of a pool look for more work for a while after a run (ONNX Runtime's some 25 ms, OpenBLAS's 100 ms) and take a
processor from whoever comes next: on two cores OpenVINO took 1.7 times its own time right behind ONNX Runtime. So a
turn waits until the process uses next to no processor time, as long as that may help. A turn is a few runs, of which
the first does not count, and its figure is their median: a single lucky or unlucky run says nothing. What runs longer
than a turn runs once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from nnadapter.process.processors import own_seconds

_MOST_RUNS = 50
_LOOK_SECONDS = 0.002
"""For so long a look at the processor time lasts."""
_QUIET = 6
"""Looks in a row: of a thread that runs, systems count the processor time at their ticks, 4 to 10 ms apart."""
_LOOKS = 75
"""Looks at most: other threads of the program may never rest."""
_RESTING = 0.25
"""Processors in use by whom rests, the one that looks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Times turns. The first three are seconds of clocks, of which differences count."""

    clock: Callable[[], float] = field(default_factory=lambda: time.perf_counter)
    """That passes."""
    busy: Callable[[], float] = field(default_factory=lambda: own_seconds)
    """Of processors, that this process used, or a device in a process of its own."""
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)
    turn_seconds: float = 0.02
    """A turn of short runs takes about so long."""

    def turn(self, run: Callable[[], object]) -> float:
        """Return the seconds of one run, by a turn of it."""
        self.rest()
        first = self._seconds(run)
        if first >= self.turn_seconds:
            return first
        samples = [self._seconds(run)]
        while sum(samples) < self.turn_seconds and len(samples) < _MOST_RUNS:
            samples.append(self._seconds(run))
        return median(samples)

    def rest(self) -> None:
        """Wait until nothing in this process computes, as long as that may be expected."""
        quiet = 0
        for _ in range(_LOOKS):
            start_busy, started = self.busy(), self.clock()
            self.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if self.busy() - start_busy <= _RESTING * (self.clock() - started) else 0
            if quiet == _QUIET:
                return

    def _seconds(self, run: Callable[[], object]) -> float:
        started = self.clock()
        run()
        return self.clock() - started
