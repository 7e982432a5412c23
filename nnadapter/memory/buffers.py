"""Pieces of memory and when they are needed: what the planner places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

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
