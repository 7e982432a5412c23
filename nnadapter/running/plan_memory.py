"""What plans hold together: their own memory, and what they share, once.

Dropping a plan frees what is its own, and of what it shares what no other plan holds. What the plan used last shares no
dropping frees: it is told, and does not count against a limit. A plan that nobody used since it was asked holds what it
told then, so a new plan asks two or three of them, however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple


class Holding(NamedTuple):
    """What one plan holds."""

    own_bytes: int
    shared_bytes: Mapping[Hashable, int]
    """By what it is, memory that other plans may hold as well."""


_NOTHING = Holding(0, {})


class _Counted(NamedTuple):
    """What was told, and what it comes to."""

    holdings: dict[object, Holding]
    shared: dict[Hashable, tuple[int, int]]
    """By what it is, how many plans hold it, and its bytes."""
    total_bytes: int


class PlanMemory:
    """What plans told, the last time that they were asked; used by one thread at a time.

    An interrupt comes between any two steps, so what is counted is counted aside and put in its place by one.
    """

    def __init__(self) -> None:
        self._counted = _Counted({}, {}, 0)

    @property
    def total_bytes(self) -> int:
        """What all hold together."""
        return self._counted.total_bytes

    def tell(self, plan: object, holding: Holding) -> None:
        """Take what a plan holds now."""
        if self._counted.holdings.get(plan) != holding:
            self._counted = _changed(self._counted, plan, holding)

    def forget(self, plan: object) -> None:
        """Count a plan no more."""
        self._counted = _changed(self._counted, plan, None)

    def freed_bytes(self, last: object) -> int:
        """What dropping all but the plan used last would free, and that plan's own."""
        return self.total_bytes - sum(self._counted.holdings.get(last, _NOTHING).shared_bytes.values())


def _changed(counted: _Counted, plan: object, holding: Holding | None) -> _Counted:
    """The same with what a plan holds now, or without it: copied once, as there may be thousands of programs."""
    holdings, shared = dict(counted.holdings), dict(counted.shared)
    before, now = holdings.pop(plan, _NOTHING), holding or _NOTHING
    if holding is not None:
        holdings[plan] = holding
    total_bytes = counted.total_bytes - before.own_bytes + now.own_bytes
    for key in before.shared_bytes:
        holders, nbytes = shared.pop(key)
        if holders > 1:
            shared[key] = holders - 1, nbytes
        else:
            total_bytes -= nbytes
    for key, nbytes in now.shared_bytes.items():
        holders, known = shared.get(key, (0, 0))
        shared[key] = holders + 1, nbytes
        total_bytes += nbytes - known
    return _Counted(holdings, shared, total_bytes)
