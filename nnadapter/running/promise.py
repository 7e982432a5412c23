"""What a choice by measurement promises, and whether later runs keep it.

A choice that was made while something else used the machine may be wrong. It shows in the runs that come after it: they
take clearly longer than another candidate did, or clearly less than was measured, so that nothing that was measured
then can be trusted. Single runs say nothing, and runs that overlap compete with each other; so several blocks of runs
in a row have to say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

BLOCK = 16
"""Runs of a block."""
BLOCKS = 3
"""That have to contradict in a row."""
_SLOWER = 1.25
"""Times what another candidate took."""
_FASTER = 0.75
"""Times what was measured."""
_LEAST_SECONDS = 20e-6
"""A difference that counts, at least: what is between a device and who measures takes some microseconds."""

_CLOCK_SECONDS = 1e-6
"""By how much clocks are wrong."""


def typical(runs: Sequence[float]) -> float:
    """Return what counts of the seconds of some runs, or turns of them: the lower quartile."""
    return sorted(runs)[len(runs) // 4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What was measured, in seconds of a run."""

    seconds: float
    """Of the plan."""
    rival_seconds: float = inf
    """Of the fastest other candidate."""

    def contradicted_by(self, block: Sequence[float]) -> bool:
        """Whether runs that took so many seconds contradict it, by what is `typical` of them."""
        taken = typical(block)
        slow, fast = max(self.seconds, self.rival_seconds), self.seconds
        return taken > max(_SLOWER * slow, slow + _LEAST_SECONDS) or taken < min(_FASTER * fast, fast - _LEAST_SECONDS)


@dataclass(slots=True)
class Watch:
    """Holds runs to a promise, from any thread: two that tell at once may lose a run, and nothing else."""

    promise: Promise
    block: list[float] = field(default_factory=list)
    against: int = 0
    """Blocks in a row that contradict."""
    taken: float = 0.0
    """What was `typical` of the last block that contradicts, in seconds."""
    ended: float = -inf
    """When the run before ended."""

    def is_broken_by(self, seconds: float, now: float) -> bool:
        """Whether the promise is broken, by a run that took so long and has just ended, and by those before it."""
        overlaps, self.ended = now - seconds < self.ended - _CLOCK_SECONDS, now
        if overlaps:
            self.block = []
            return False
        block = self.block
        block.append(seconds)
        if len(block) < BLOCK:
            return False
        self.block = []
        if not self.promise.contradicted_by(block):
            self.against = 0
            return False
        self.against, self.taken = self.against + 1, typical(block)
        return self.against >= BLOCKS
