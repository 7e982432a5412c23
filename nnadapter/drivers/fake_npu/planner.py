"""Where in the arena each buffer lies: buffers that live at the same time must not overlap.

Two ways are tried and the smaller arena is kept. By size, largest first, each at the lowest place that is free
during its whole life: the best known simple rule, but its work grows with the number of buffers alive at once, so
it is left out where that is too much. By time, like an allocator that takes the tightest gap: near linear always.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy by size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes; every offset is a multiple of it: a cache line, and the widest vector register."""
WORK_LIMIT = 4_000_000
"""Placing by size is tried where the squares of how many buffers are alive at each step sum up to at most this."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One piece of memory and when it is needed."""

    nbytes: int
    first: int
    """The step that writes it."""
    last: int
    """The last step that reads it; at least `first`."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where buffers lie."""

    offsets: tuple[int, ...]
    """One per buffer, in bytes."""
    arena_bytes: int
    lower_bound_bytes: int
    """The most bytes that are alive at once: no placement can need less."""


def place(buffers: Sequence[Buffer]) -> Placement:
    """Place all buffers in one arena."""
    sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
    counts, bound = _alive(buffers, sizes)
    offsets = _by_time(buffers, sizes)
    arena = _end(offsets, sizes)
    if arena > bound and sum(count * count for count in counts) <= WORK_LIMIT:
        others = _by_size(buffers, sizes)
        if _end(others, sizes) < arena:
            offsets, arena = others, _end(others, sizes)
    return Placement(tuple(offsets), arena, bound)


def _end(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _alive(buffers: Sequence[Buffer], sizes: Sequence[int]) -> tuple[list[int], int]:
    """How many buffers are alive at each step, and the most bytes alive at any."""
    steps = max((buffer.last for buffer in buffers), default=-1) + 1
    count_change, byte_change = [0] * (steps + 1), [0] * (steps + 1)
    for buffer, size in zip(buffers, sizes, strict=True):
        count_change[buffer.first] += 1
        count_change[buffer.last + 1] -= 1
        byte_change[buffer.first] += size
        byte_change[buffer.last + 1] -= size
    counts, alive, nbytes, bound = [], 0, 0, 0
    for count, change in zip(count_change, byte_change, strict=True):
        alive, nbytes = alive + count, nbytes + change
        counts.append(alive)
        bound = max(bound, nbytes)
    return counts, bound


def _by_size(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """Largest first, each at the lowest offset that is free during its life."""
    steps = max((buffer.last for buffer in buffers), default=-1) + 1
    placed: list[list[int]] = [[] for _ in range(steps)]
    offsets = [0] * len(buffers)
    for index in sorted(range(len(buffers)), key=lambda index: (-sizes[index], buffers[index].first)):
        life = range(buffers[index].first, buffers[index].last + 1)
        neighbours = {other for step in life for other in placed[step]}
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in neighbours)
        offsets[index] = _lowest_gap(taken, sizes[index])
        for step in life:
            placed[step].append(index)
    return offsets


def _lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The lowest offset at which `size` bytes fit between the intervals, which are sorted by their start."""
    offset = 0
    for start, end in taken:
        if start - offset >= size:
            return offset
        offset = max(offset, end)
    return offset


def _by_time(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """In the order of steps, each in the tightest gap that is free at its first step."""
    offsets = [0] * len(buffers)
    expiring: dict[int, list[int]] = {}
    gaps = _Gaps()
    clock = 0
    for index in sorted(range(len(buffers)), key=lambda index: (buffers[index].first, -sizes[index])):
        while clock < buffers[index].first:
            for other in expiring.pop(clock, ()):
                gaps.give_back(offsets[other], offsets[other] + sizes[other])
            clock += 1
        offsets[index] = gaps.take(sizes[index])
        expiring.setdefault(buffers[index].last, []).append(index)
    return offsets


class _Gaps:
    """Free intervals below a growing end."""

    def __init__(self) -> None:
        self._end = 0
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Take `size` bytes from the tightest gap, or from the end."""
        if size == 0:
            return 0
        position = _first_at_least(self._by_size, size)
        if position == len(self._by_size):
            return self._extend(size)
        length, start = self._by_size[position]
        self._remove(start, start + length)
        if length > size:
            self._add(start + size, start + length)
        return start

    def give_back(self, start: int, end: int) -> None:
        """Free an interval, joined with the gaps beside it."""
        if start == end:
            return
        if start in self._by_end:
            before = self._by_end[start]
            self._remove(before, start)
            start = before
        if end in self._by_start:
            after = self._by_start[end]
            self._remove(end, after)
            end = after
        self._add(start, end)

    def _extend(self, size: int) -> int:
        """Take from the end, beginning in the gap that touches it, if there is one."""
        start = self._end
        if start in self._by_end:
            start = self._by_end[start]
            self._remove(start, self._end)
        self._end = start + size
        return start

    def _add(self, start: int, end: int) -> None:
        self._by_start[start], self._by_end[end] = end, start
        insort(self._by_size, (end - start, start))

    def _remove(self, start: int, end: int) -> None:
        del self._by_start[start], self._by_end[end]
        del self._by_size[_first_at_least(self._by_size, end - start, start)]


def _first_at_least(gaps: list[tuple[int, int]], size: int, start: int = -1) -> int:
    return bisect_left(gaps, (size, start))
