"""What plans hold together: their own memory, and what they share, once.

Dropping a plan frees what is its own, and of what it shares what no other plan holds. What the plan used last shares no
dropping frees: it is told, and does not count against a limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Holding(NamedTuple):
    """What one plan holds."""

    own_bytes: int
    shared_bytes: Mapping[Hashable, int]
    """By what it is, memory that other plans may hold as well."""


def total_bytes(holdings: Iterable[Holding]) -> int:
    """Return the bytes that plans hold together."""
    own, shared = 0, dict[Hashable, int]()
    for holding in holdings:
        own += holding.own_bytes
        shared.update(holding.shared_bytes)
    return own + sum(shared.values())


def most_kept(holdings: Sequence[Holding], limit: int, limit_bytes: int) -> int:
    """Return how many of the last plans stay: one at least, at most `limit`, of together `limit_bytes`.

    Args:
        holdings: the one that goes first is the first, the one used last is the last.
        limit: how many there may be.
        limit_bytes: of what dropping frees.
    """
    stays = sum(holdings[-1].shared_bytes.values())
    most = min(limit, len(holdings))
    while most > 1 and total_bytes(holdings[-most:]) - stays > limit_bytes:
        most -= 1
    return max(most, 1)
