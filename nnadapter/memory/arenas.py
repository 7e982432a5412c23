"""Working memory: arenas that are lent for one computation at a time.

Programs of many shapes share them, so a plan costs no memory of its own to speak of, and a new shape does not wait for
the system to hand out fresh pages. There are as many arenas as computations ever ran at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.memory.buffers import ALIGNMENT

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
    def lent(self, nbytes: int, holder: object = None) -> Iterator[Arena]:
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
    from nnadapter.memory.shared import shared_bytes  # most sessions share nothing

    return shared_bytes(nbytes)


def _aligned(nbytes: int) -> Array:
    try:
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than any machine can address
        text = f"{nbytes} bytes of working memory were asked for, and the machine has no such room; use smaller inputs"
        raise OutOfMemoryError(text) from error
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]
