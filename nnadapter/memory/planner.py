"""Where in the arena each buffer lies: buffers that live at the same time must not overlap.

Buffers are placed one after the other, each at the lowest offset that is free during its whole life. All depends on
the order, so several are tried, and the smallest arena is kept:

1. By breadth, size and life: what is alive when most bytes are alive, and fills most of the arena for longest, first.
2. By size, largest first.
3. By step.
4. From the best of these on, what ended at the top comes first in the next try.

Nothing more is tried once the arena is as small as the lower bound. Tries are bounded by their work; where even one is
too much, because very many buffers are alive at once, `by_time` places them.

Sources: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy by breadth and
greedy by size. Repairing the order around what makes the peak is the idea of the hill-climbing allocator in Arm's
compiler Vela for Ethos-U; here it is without chance, so that a model is placed alike each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nnadapter.memory.buffers import Buffer, alive, neighbors, padded_sizes
from nnadapter.memory.by_time import place_by_time

_MOST_TRIES = 16
_FEWEST_TRIES = 3
_WORK = 16_000
"""Buffers, and pairs of them, that all tries together may look at; the first few are made whatever they cost."""
_MOST_PAIRS = 1_000_000
"""With more pairs of buffers that are alive together, not even one order is tried."""


@dataclass(frozen=True, slots=True)
class BufferPlacement:
    """Where buffers lie."""

    offsets: tuple[int, ...]
    """One per buffer, in bytes."""
    arena_bytes: int
    lower_bound_bytes: int
    """The most bytes that are alive at once: no placement can need less."""


def place(buffers: Sequence[Buffer]) -> BufferPlacement:
    """Place all buffers in one arena."""
    sizes = padded_sizes(buffers)
    breadths = alive(buffers, sizes)
    bound = max(breadths)
    pairs = _pairs(buffers)
    if pairs > _MOST_PAIRS:
        offsets = place_by_time(buffers, sizes)
        return BufferPlacement(tuple(offsets), _end(offsets, sizes), bound)
    tries = min(_MOST_TRIES, max(_FEWEST_TRIES, _WORK // (len(buffers) + pairs + 1)))
    best: BufferPlacement | None = None
    for offsets, arena in _tries(buffers, sizes, breadths, tries):
        if best is None or arena < best.arena_bytes:
            best = BufferPlacement(tuple(offsets), arena, bound)
        if arena <= bound:
            break
    assert best is not None, "at least one order is tried"
    return best


def _tries(
    buffers: Sequence[Buffer], sizes: Sequence[int], breadths: Sequence[int], count: int
) -> Iterator[tuple[list[int], int]]:
    """Offsets and arena of one order after the other, at most `count`."""
    adjacency = neighbors(buffers)
    attempts = []
    for key in _keys(buffers, sizes, breadths):
        order = sorted(range(len(buffers)), key=key)
        offsets, arena = _place_in_order(order, sizes, adjacency)
        yield offsets, arena
        attempts.append((arena, order, offsets))
    arena, order, offsets = min(attempts)
    for _ in range(count - len(attempts)):
        highest = [index for index in order if offsets[index] + sizes[index] == arena]
        first = frozenset(highest)
        order = highest + [index for index in order if index not in first]
        offsets, arena = _place_in_order(order, sizes, adjacency)
        yield offsets, arena


def _keys(
    buffers: Sequence[Buffer], sizes: Sequence[int], breadths: Sequence[int]
) -> tuple[Callable[[int], tuple[int, ...]], ...]:
    """The orders that are tried, as keys to sort by."""
    firsts = [buffer.first for buffer in buffers]
    lives = [buffer.last - buffer.first + 1 for buffer in buffers]
    widest = [max(breadths[buffer.first : buffer.last + 1]) for buffer in buffers]
    return (
        lambda index: (-widest[index], -sizes[index] * lives[index], firsts[index]),
        lambda index: (-sizes[index], firsts[index]),
        lambda index: (firsts[index], -sizes[index]),
    )


def _place_in_order(
    order: Sequence[int], sizes: Sequence[int], adjacency: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Return the offsets, each the lowest that is free when its turn comes, and where the last buffer ends."""
    offsets = [-1] * len(order)
    arena = 0
    for index in order:
        intervals = sorted((offsets[other], sizes[other]) for other in adjacency[index] if offsets[other] >= 0)
        offset = _lowest_gap(intervals, sizes[index])
        offsets[index] = offset
        arena = max(arena, offset + sizes[index])
    return offsets, arena


def _lowest_gap(intervals: Sequence[tuple[int, int]], size: int) -> int:
    """The lowest offset at which `size` bytes fit between offsets and sizes that are sorted."""
    offset = 0
    for start, length in intervals:
        if start - offset >= size:
            break
        offset = max(offset, start + length)
    return offset


def _pairs(buffers: Sequence[Buffer]) -> int:
    """An upper bound on how many pairs of buffers are alive together."""
    counts = alive(buffers, [1] * len(buffers))
    return sum(counts[buffer.first] for buffer in buffers)


def _end(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
