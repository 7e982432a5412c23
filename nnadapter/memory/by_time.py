"""Placing buffers in the order of steps, like an allocator that takes the tightest gap: near linear, always."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from nnadapter.memory.buffers import Buffer


def place_by_time(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """Return the offset of every buffer: each takes the tightest gap that is free at its first step.

    Args:
        buffers: what to place.
        sizes: bytes of each, padded to the alignment.
    """
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
            gap_start = self._by_end[start]
            self._remove(gap_start, start)
            start = gap_start
        if end in self._by_start:
            gap_end = self._by_start[end]
            self._remove(end, gap_end)
            end = gap_end
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
