"""Honest timings: the things compared take turns in one process, and the median of each is what counts."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

_MOST_RUNS = 200
"""Runs in one turn."""


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int, pause: float = 0.0, turn: float = 0.0
) -> dict[str, float]:
    """Return the median seconds of every candidate over `rounds` rounds in turn, after one that does not count.

    Each round has an order of its own, drawn by chance, the same in every call: who comes after whom decides what
    caches and memory it finds. To go there and back again favors the two at the ends, which come after themselves.
    Before each turn there are `pause` seconds of sleep, which are not counted. A turn is one run; with `turn` seconds
    it is one that does not count and then as many as fit into that time, at least one, and their median is the turn's.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    order, chance = list(candidates.items()), random.Random(0)
    for position in range(rounds + 1):
        chance.shuffle(order)
        for name, candidate in order:
            if pause:
                time.sleep(pause)
            seconds = _turn(candidate, turn)
            if position:
                taken[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _turn(candidate: Callable[[], object], seconds: float) -> float:
    if not seconds:
        return _seconds(candidate)
    candidate()
    taken = [_seconds(candidate)]
    while sum(taken) < seconds and len(taken) < _MOST_RUNS:
        taken.append(_seconds(candidate))
    return statistics.median(taken)


def _seconds(candidate: Callable[[], object]) -> float:
    started = time.perf_counter()
    candidate()
    return time.perf_counter() - started
