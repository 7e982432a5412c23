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


class PlanMemory:
    """What plans told, the last time that they were asked; used by one thread at a time.

    An interrupt comes between any two steps. So what was told is put in its place by one, and what it comes to is
    counted along with it: where an interrupt came between, it is counted anew.
    """

    def __init__(self) -> None:
        self._holdings: dict[object, Holding] = {}
        self._shared: dict[Hashable, tuple[int, int]] = {}
        """By what it is, how many plans hold it, and its bytes."""
        self._total_bytes = 0
        self._is_counted = True

    @property
    def total_bytes(self) -> int:
        """What all hold together."""
        self._count()
        return self._total_bytes

    def tell(self, plan: object, holding: Holding) -> None:
        """Take what a plan holds now."""
        if self._holdings.get(plan) != holding:
            self._change(plan, holding)

    def forget(self, plan: object) -> None:
        """Count a plan no more."""
        self._change(plan, None)

    def freed_bytes(self, last: object) -> int:
        """What dropping all but the plan used last would free, and that plan's own."""
        return self.total_bytes - sum(self._holdings.get(last, _NOTHING).shared_bytes.values())

    def _change(self, plan: object, holding: Holding | None) -> None:
        self._count()
        before = self._holdings.get(plan, _NOTHING)
        self._is_counted = False
        if holding is None:
            self._holdings.pop(plan, None)
        else:
            self._holdings[plan] = holding
        self._take_out(before)
        self._add(holding or _NOTHING)
        self._is_counted = True

    def _count(self) -> None:
        """Add all up again, if an interrupt came into it."""
        if self._is_counted:
            return
        self._shared.clear()
        self._total_bytes = 0
        for holding in self._holdings.values():
            self._add(holding)
        self._is_counted = True

    def _take_out(self, holding: Holding) -> None:
        shared, total_bytes = self._shared, self._total_bytes - holding.own_bytes
        for key in holding.shared_bytes:
            holders, nbytes = shared.pop(key)
            if holders > 1:
                shared[key] = holders - 1, nbytes
            else:
                total_bytes -= nbytes
        self._total_bytes = total_bytes

    def _add(self, holding: Holding) -> None:
        shared, total_bytes = self._shared, self._total_bytes + holding.own_bytes
        for key, nbytes in holding.shared_bytes.items():
            holders, known = shared.get(key, (0, 0))
            shared[key] = holders + 1, nbytes
            total_bytes += nbytes - known
        self._total_bytes = total_bytes
