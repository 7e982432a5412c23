"""Which of several candidates is the fastest, by turns that they took one after the other, and how sure that is.

All here is a function of samples. Noise of a shared machine only adds time, and lasts: so of a candidate's turns a low
one counts, but not the least, which may be luck; and two candidates are compared turn by turn, since what disturbs the
machine disturbs neighbors alike. The simplest candidate is taken unless another one is faster by more than noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from nnadapter.running.promise import typical

Samples = Sequence[Sequence[float]]
"""Seconds of every candidate's turns, in the order in which they took turns; some take fewer than others."""

MARGIN = 0.02
"""A candidate that is faster by no more than this share is no reason for something less simple."""
_FEWEST, _MOST_TURNS = 5, 15
"""Turns of those that are still in question."""
_WIDE = (10.0, 4.0, 1.5, 1.2)
"""Times by which one has to be slower in every turn, where they took 1, 2, 3 or 4."""
_PATIENCE_SECONDS = 6.0
"""After so long nobody gets more turns than tell anything."""
_BARELY = 3
"""Such turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of a contest."""

    winner: int
    """Position of the candidate to take."""
    seconds: tuple[float, ...]
    """Of each candidate, see `typical`."""
    is_sure: bool
    """The candidate is the one to take beyond noise; or others are as good, and that is beyond noise."""


def is_slower(turns: Sequence[float], others: Sequence[float], by: float = 0.0) -> bool:
    """Return whether one is slower than the other beyond noise: by more than a share `by`, in nearly every turn.

    Of 5 turns in all, of 7 in all but one, of 11 in all but two: by chance that comes in 2 to 6 of 100 cases. Fewer
    turns tell it only where all of them say so by a wide margin, whatever `by` is.

    Args:
        turns: of the one.
        others: of the other, who took turns from the same round on; turns that only one of them took tell nothing.
        by: a share of the other's seconds, above -1.
    """
    pairs = list(zip(turns, others, strict=False))
    if len(pairs) < _FEWEST:
        return bool(pairs) and all(mine > _WIDE[len(pairs) - 1] * other for mine, other in pairs)
    against = sum(mine <= (1 + by) * other for mine, other in pairs)
    return against <= (len(pairs) - 3) // 4


def still_in_question(samples: Samples) -> list[int]:
    """Return who may be the fastest as far as is known: who is not slower than it by `MARGIN`, beyond noise."""
    fastest = samples[_fastest(samples)]
    return [number for number, turns in enumerate(samples) if not is_slower(turns, fastest, MARGIN)]


def decided(samples: Samples, simplest: Sequence[int]) -> Outcome:
    """Return who is to be taken.

    1. The fastest is who has the least `typical` seconds.
    2. Whoever has no more than `MARGIN` above that is as good; of these the simplest is taken.
    3. That is sure if beyond noise nobody is faster than who is taken by more than twice the margin.

    Args:
        samples: at least one turn of each.
        simplest: positions, the simplest first.
    """
    seconds = tuple(typical(turns) for turns in samples)
    enough = (1 + MARGIN) * min(seconds)
    winner = next(number for number in simplest if seconds[number] <= enough)
    others = [turns for number, turns in enumerate(samples) if number != winner]
    sure = all(is_slower(turns, samples[winner], -2 * MARGIN) for turns in others)
    return Outcome(winner=winner, seconds=seconds, is_sure=sure)


def contest(
    candidates: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, list[list[float]]]:
    """Let candidates take turns until it is clear who is to be taken, or no more turns help.

    Everyone takes a turn in each round, in an order drawn by chance, which is the same in every contest.

    Args:
        candidates: each takes a turn and returns its seconds.
        simplest: positions, the simplest first.
        clock: gives seconds that pass.

    Returns:
        What came out, and the samples.
    """
    samples: list[list[float]] = [[] for _ in candidates]
    left, chance, started = list(range(len(candidates))), Random(0), clock()
    for turns in range(1, _MOST_TURNS + 1):
        for number in chance.sample(left, len(left)):
            samples[number].append(candidates[number]())
        asked = still_in_question(samples)
        left = [number for number in left if number in asked]
        is_late = turns >= _BARELY and clock() - started > _PATIENCE_SECONDS
        if len(left) == 1 or is_late or (turns >= _FEWEST and decided(samples, simplest).is_sure):
            break
    return decided(samples, simplest), samples


def twice(
    turns: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, str]:
    """Return which of several candidates to take, and why that is in doubt, in words; empty where it is not.

    After a contest of all, who is to be taken and the fastest other one hold a second one. All their turns count.

    Args:
        turns: each takes a turn of a candidate and returns its seconds; two at least.
        simplest: positions, the simplest first.
        clock: gives seconds that pass.
    """
    first, samples = contest(turns, simplest, clock)
    others = set(range(len(turns))) - {first.winner}
    pair = (first.winner, min(others, key=first.seconds.__getitem__))
    ranks = sorted((0, 1), key=lambda number: simplest.index(pair[number]))
    second, again = contest([turns[number] for number in pair], ranks, clock)
    seconds = list(first.seconds)
    for number, more in zip(pair, again, strict=True):
        seconds[number] = typical([*samples[number], *more])
    if second.winner == 0:
        doubt = "" if first.is_sure and second.is_sure else "what was measured differs too little, for its noise"
        return Outcome(winner=pair[0], seconds=tuple(seconds), is_sure=not doubt), doubt
    joined = decided([[*samples[number], *more] for number, more in zip(pair, again, strict=True)], ranks)
    winner = pair[joined.winner]
    return Outcome(winner=winner, seconds=tuple(seconds), is_sure=False), "two measurements disagree"


def _fastest(samples: Samples) -> int:
    seconds = [typical(turns) for turns in samples]
    return seconds.index(min(seconds))
