"""Placement of buffers in one block of memory, and a pool of such blocks (arenas).

Buffers with overlapping lifetimes must not overlap in memory. Each is placed at the lowest offset free during its
lifetime. The smallest arena of several orders wins:

1. By breadth (most bytes alive at once during the lifetime), then size times lifetime.
2. By size.
3. By first step.
4. From the best of these, repeatedly: buffers at the arena's top move to the front.

The search stops at the lower bound. `place_by_time` handles very many overlapping lifetimes.

Sources: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy by breadth and by
size; step 4: hill-climbing allocator of Arm's compiler Vela for Ethos-U, here deterministic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass

ALIGNMENT = 64
"""Bytes: a cache line and the widest vector register."""


class Buffer(NamedTuple):
    """Size and lifetime of one buffer."""

    nbytes: int
    first: int
    """Step that writes it."""
    last: int
    """Last step that reads it; at least `first`."""


def padded_sizes(buffers: Sequence[Buffer]) -> list[int]:
    """Return the sizes of buffers, rounded up to `ALIGNMENT`."""
    return [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]


def alive(buffers: Sequence[Buffer], amounts: Sequence[int]) -> list[int]:
    """Return the sum of `amounts` over the buffers alive, for every step."""
    change = [0] * (max((buffer.last for buffer in buffers), default=-1) + 2)
    for buffer, amount in zip(buffers, amounts, strict=True):
        change[buffer.first] += amount
        change[buffer.last + 1] -= amount
    return list(accumulate(change))


def neighbors(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Return each buffer's neighbors: the indices of buffers with overlapping lifetimes."""
    neighbor_indices: list[list[int]] = [[] for _ in buffers]
    active: list[int] = []
    for index in sorted(range(len(buffers)), key=lambda index: buffers[index].first):
        first = buffers[index].first
        active = [other for other in active if buffers[other].last >= first]
        neighbor_indices[index] += active
        for other in active:
            neighbor_indices[other].append(index)
        active.append(index)
    return neighbor_indices


def place_by_time(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """Return offsets: buffers, in the order of their first steps, get the smallest free gap that fits."""
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
    def __init__(self) -> None:
        self._end = 0
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        if size == 0:
            return 0
        position = bisect_left(self._by_size, (size, 0))
        if position == len(self._by_size):
            return self._extend(size)
        length, start = self._by_size[position]
        self._remove(start, start + length)
        if length > size:
            self._add(start + size, start + length)
        return start

    def give_back(self, start: int, end: int) -> None:
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
        del self._by_size[bisect_left(self._by_size, (end - start, start))]


_MOST_TRIES = 16
_FEWEST_TRIES = 3
_WORK = 16_000
"""Limit on the buffers and overlapping pairs that all tried orders examine."""
_MOST_PAIRS = 1_000_000
"""Limit on overlapping pairs; above it no orders are tried."""


@dataclass(frozen=True, slots=True)
class BufferPlacement:
    """Offsets of buffers in an arena."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int


def place(buffers: Sequence[Buffer]) -> BufferPlacement:
    """Place all buffers in one arena."""
    sizes = padded_sizes(buffers)
    breadths = alive(buffers, sizes)
    bound = max(breadths)
    pairs = _pairs(buffers)
    if pairs > _MOST_PAIRS:
        offsets = place_by_time(buffers, sizes)
        return BufferPlacement(tuple(offsets), max(map(add, offsets, sizes)), bound)
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
    offsets = [-1] * len(order)
    arena = 0
    for index in order:
        intervals = sorted((offsets[other], sizes[other]) for other in adjacency[index] if offsets[other] >= 0)
        offset = _lowest_gap(intervals, sizes[index])
        offsets[index] = offset
        arena = max(arena, offset + sizes[index])
    return offsets, arena


def _lowest_gap(intervals: Sequence[tuple[int, int]], size: int) -> int:
    offset = 0
    for start, length in intervals:
        if start - offset >= size:
            break
        offset = max(offset, start + length)
    return offset


def _pairs(buffers: Sequence[Buffer]) -> int:
    counts = alive(buffers, [1] * len(buffers))
    return sum(counts[buffer.first] for buffer in buffers)


_SMALLEST_BYTES = 1 << 16


class Arena:
    """Block of working memory."""

    def __init__(self, nbytes: int, *, shared: bool = False) -> None:
        if shared:
            from nnadapter.drivers.shared_memory import shared_bytes  # lazy: most sessions share nothing

            self.bytes = shared_bytes(nbytes)
        else:
            self.bytes = _aligned(nbytes)
        self.bound: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        """Execution -> its state that points into these bytes."""
        self.used_bytes = 0
        """Largest requested size; bytes beyond were never written."""


class Arenas:
    """Pool of arenas, optionally shared with other processes. Lock-free, so safe in threads and signal handlers."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._idle: list[Arena] = []

    @contextmanager
    def acquire(self, nbytes: int, holder: object = None) -> Iterator[Arena]:
        """Yield an arena of at least `nbytes` for exclusive use, preferably with state of `holder`."""
        arena = self._acquire(nbytes, holder)
        try:
            yield arena
        finally:
            self._idle.append(arena)

    @property
    def used_bytes(self) -> int:
        return sum(arena.used_bytes for arena in list(self._idle))

    def close(self) -> None:
        self._idle.clear()

    def _acquire(self, nbytes: int, holder: object) -> Arena:
        arena = self._idle_for(holder)
        if arena is None or arena.bytes.size < nbytes:
            # Powers of two seldom have to grow; unwritten pages cost nothing.
            arena = Arena(1 << (max(nbytes, _SMALLEST_BYTES) - 1).bit_length(), shared=self._shared)
        arena.used_bytes = max(arena.used_bytes, nbytes)
        return arena

    def _idle_for(self, holder: object) -> Arena | None:
        while idle := list(self._idle):
            arena = max(idle, key=lambda arena: (holder in arena.bound, arena.bytes.size))
            try:
                self._idle.remove(arena)
            except ValueError:  # another thread took it
                continue
            return arena
        return None


def _aligned(nbytes: int) -> Array:
    try:
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: larger than the address space
        text = f"cannot allocate {nbytes} bytes of working memory; use smaller inputs"
        raise OutOfMemoryError(text) from error
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]
