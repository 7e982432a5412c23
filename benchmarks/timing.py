"""Honest timings: the things compared take turns in one process, and the median of each is what counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int, pause: float = 0.0) -> dict[str, float]:
    """Return the median seconds of every candidate over `rounds` rounds in turn, after one that does not count.

    Every other round goes backwards: who comes first finds other caches and other free memory than who comes second.
    Before each run there are `pause` seconds of sleep, which are not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates.items())
    for position in range(rounds + 1):
        for name, candidate in order if position % 2 else reversed(order):
            if pause:
                time.sleep(pause)
            started = time.perf_counter()
            candidate()
            if position:
                taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
