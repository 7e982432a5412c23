"""Which of some atoms a device fails to compile: found by compiling some of them, in bounded tries and seconds.

Halves are compiled. A half that fails is halved again, so every atom that fails alone is found. Where neither half
fails it is what they hold together: two atoms that fail only beside each other are searched for by halving what stands
beside them. If they are not two either, the whole is too large, and is to be cut. A device of which nothing compiles is
not at odds with nodes, and is not searched for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

Compiles = Callable[[Sequence[int]], bool]
"""Whether a device compiles these atoms."""

_MOST_TRIES = 128
_MOST_SECONDS = 30.0
"""Both of one session."""
_HOPELESS = 6
"""Tries after which something must have compiled, if only a single atom."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """What was found."""

    alone: tuple[int, ...] = ()
    """Atoms each of which fails by itself."""
    beside: tuple[tuple[int, int], ...] = ()
    """Atoms that fail together, and not alone."""
    is_too_large: bool = False
    """Not single atoms nor two are at fault, but that they are so many."""

    def __add__(self, other: Culprits) -> Culprits:
        """Those of both."""
        return Culprits(self.alone + other.alone, self.beside + other.beside, self.is_too_large or other.is_too_large)


NOT_FOUND = Culprits()


class _SpentError(Exception):
    """The bounds are reached. Nobody outside of this file sees it."""


@dataclass(eq=False, slots=True)
class Budget:
    """What may be spent on searching in one session."""

    tries: int = _MOST_TRIES
    seconds: float = _MOST_SECONDS
    clock: Callable[[], float] = field(default=time.perf_counter)

    def left(self) -> bool:
        """Whether there is something left."""
        return self.tries > 0 and self.seconds > 0

    def spend(self, work: Callable[[], bool]) -> bool:
        """Do a try; raise where none is left."""
        if not self.left():
            raise _SpentError
        started = self.clock()
        self.tries -= 1
        try:
            return work()
        finally:
            self.seconds -= self.clock() - started


def culprits_of(atoms: Sequence[int], compiles: Compiles, budget: Budget) -> Culprits:
    """Return what is at fault where a device failed to compile all of `atoms`, in their order.

    Returns:
        What was found within the budget; `NOT_FOUND` if it was not enough, or nothing compiles.
    """
    tried = passed = 0

    def asked(some: Sequence[int]) -> bool:
        nonlocal tried, passed
        if tried == _HOPELESS and not passed:
            passed = any(budget.spend(partial(compiles, (atom,))) for atom in (atoms[0], atoms[-1]))
            if not passed:
                raise _SpentError
        tried += 1
        is_compiled = budget.spend(partial(compiles, some))
        passed += is_compiled
        return is_compiled

    try:
        found = _search(tuple(atoms), asked)
    except _SpentError:
        return NOT_FOUND
    return found if passed or len(atoms) == 1 else NOT_FOUND


def _search(failing: tuple[int, ...], compiles: Compiles) -> Culprits:
    """What is at fault in atoms that fail together."""
    if len(failing) == 1:
        return Culprits(alone=failing)
    left, right = failing[: len(failing) // 2], failing[len(failing) // 2 :]
    failed = [half for half in (left, right) if not compiles(half)]
    if not failed:
        return _together(left, right, compiles)
    found = NOT_FOUND
    for half in failed:
        found += _search(half, compiles)
        if found.is_too_large:  # it is cut in two, and what fails of that is searched then
            break
    return found


def _together(left: tuple[int, ...], right: tuple[int, ...], compiles: Compiles) -> Culprits:
    """What is at fault where two halves compile and the whole does not."""
    one = _needed(left, right, compiles)
    other = _needed(right, (one,), compiles) if not compiles((*right, one)) else None
    if other is None or compiles((one, other)):
        return Culprits(is_too_large=True)
    return Culprits(beside=((one, other),))


def _needed(candidates: tuple[int, ...], beside: tuple[int, ...], compiles: Compiles) -> int:
    """The last of the fewest first candidates that fail beside others; all of them do."""
    passing, failing = 0, len(candidates)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if compiles((*candidates[:middle], *beside)):
            passing = middle
        else:
            failing = middle
    return candidates[failing - 1]
