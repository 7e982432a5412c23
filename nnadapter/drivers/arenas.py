"""Working memory on the host: placement of buffers in one block, and arenas lent for one computation.

Where in the arena each buffer lies: buffers that live at the same time must not overlap.

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

Working memory: arenas that are lent for one computation at a time.

Programs of many shapes share them, so a plan costs no memory of its own to speak of, and a new shape does not wait for
the system to hand out fresh pages. There are as many arenas as computations ever ran at once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array

ALIGNMENT = 64
"""Bytes; every offset is a multiple of it: a cache line, and the widest vector register."""


class Buffer(NamedTuple):
    """One piece of memory and when it is needed."""

    nbytes: int
    first: int
    """The step that writes it."""
    last: int
    """The last step that reads it; at least `first`."""


def padded_sizes(buffers: Sequence[Buffer]) -> list[int]:
    """Bytes of every buffer, up to the next multiple of the alignment."""
    return [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]


def alive(buffers: Sequence[Buffer], amounts: Sequence[int]) -> list[int]:
    """The sum, at every step, of the amounts of the buffers that are alive then."""
    change = [0] * (max((buffer.last for buffer in buffers), default=-1) + 2)
    for buffer, amount in zip(buffers, amounts, strict=True):
        change[buffer.first] += amount
        change[buffer.last + 1] -= amount
    return list(accumulate(change))


def neighbors(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Per buffer, those that are alive while it is: they must not overlap."""
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


_SMALLEST_BYTES = 1 << 16


class Arena:
    """One piece of working memory."""

    def __init__(self, nbytes: int, *, shared: bool = False) -> None:
        self.bytes: Array = _shared(nbytes) if shared else _aligned(nbytes)
        """Uninitialized; starts at a multiple of the alignment."""
        self.bound: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        """What executions keep that points into these bytes; it goes when the arena goes."""
        self.used_bytes = 0
        """The most that anybody asked for; nobody wrote to what lies beyond."""


class Arenas:
    """The arenas of one owner; safe to use from many threads, and in handlers of signals: there is no lock.

    Args:
        shared: other processes can map them.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._idle: list[Arena] = []

    @contextmanager
    def acquire(self, nbytes: int, holder: object = None) -> Iterator[Arena]:
        """An arena of at least `nbytes`, for nobody else until it is given back.

        Args:
            nbytes: how much is needed.
            holder: who computes in it; the arena that holds what it bound before is lent again, if it is idle.
        """
        arena = self._take(nbytes, holder)
        try:
            yield arena
        finally:
            self._idle.append(arena)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arenas that nobody uses now, as far as they were ever used."""
        return sum(arena.used_bytes for arena in list(self._idle))

    def close(self) -> None:
        """Free what nobody uses now."""
        self._idle.clear()

    def _take(self, nbytes: int, holder: object) -> Arena:
        arena = self._idle_for(holder)
        if arena is None or arena.bytes.size < nbytes:
            # Powers of two, so that it seldom has to grow; pages that nobody writes to cost nothing.
            arena = Arena(1 << (max(nbytes, _SMALLEST_BYTES) - 1).bit_length(), shared=self._shared)
        arena.used_bytes = max(arena.used_bytes, nbytes)
        return arena

    def _idle_for(self, holder: object) -> Arena | None:
        """The idle arena that the holder is bound to, or else the largest; a larger one takes its place."""
        while idle := list(self._idle):
            arena = max(idle, key=lambda arena: (holder in arena.bound, arena.bytes.size))
            try:
                self._idle.remove(arena)
            except ValueError:  # somebody else was first
                continue
            return arena
        return None


def _shared(nbytes: int) -> Array:
    from nnadapter.drivers.shared_memory import shared_bytes  # most sessions share nothing

    return shared_bytes(nbytes)


def _aligned(nbytes: int) -> Array:
    try:
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than any machine can address
        text = f"{nbytes} bytes of working memory were asked for, and the machine has no such room; use smaller inputs"
        raise OutOfMemoryError(text) from error
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]
