"""The compiled plans of one session, one per set of input shapes: bounded, counted, the least recently used dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What is kept."""

    def close(self) -> None:
        """Free it."""


Kept = TypeVar("Kept", bound=Closable)


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """How the plans of a session were used."""

    kept: int
    made: int
    used_again: int
    dropped: int


class Lease(Generic[Kept]):
    """A plan in use: it is not closed before it is given back."""

    __slots__ = ("dropped", "made", "plan", "users")

    def __init__(self) -> None:
        self.plan: Kept | None = None
        self.users = 0
        self.dropped = False
        self.made = threading.Lock()


class PlanCache(Generic[Kept]):
    """Plans by key. A plan is made once, however many threads ask for it at the same time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._leases: OrderedDict[Hashable, Lease[Kept]] = OrderedDict()
        self._lock = threading.Lock()
        self._made = self._used_again = self._dropped = 0

    @property
    def counts(self) -> PlanCounts:
        """How the plans were used so far."""
        return PlanCounts(len(self._leases), self._made, self._used_again, self._dropped)

    @property
    def newest(self) -> Kept | None:
        """The plan used last."""
        with self._lock:
            return next((lease.plan for lease in reversed(self._leases.values()) if lease.plan is not None), None)

    def take(self, key: Hashable, make: Callable[[], Kept]) -> tuple[Lease[Kept], Kept]:
        """Return the plan of `key`, made now if it is not kept, and the lease to give back."""
        with self._lock:
            lease = self._leases.get(key)
            if lease is None:
                lease = self._leases[key] = Lease()
            else:
                self._leases.move_to_end(key)
            lease.users += 1
        if lease.plan is not None:
            self._used_again += 1
            return lease, lease.plan
        try:
            return lease, self._make(lease, make)
        except BaseException:
            self._forget(key, lease)
            raise

    def give(self, lease: Lease[Kept]) -> None:
        """Give a lease back."""
        with self._lock:
            lease.users -= 1
            close = lease.dropped and not lease.users
        if close and lease.plan is not None:
            lease.plan.close()

    def close(self) -> None:
        """Drop every plan; those in use are closed when they are given back."""
        with self._lock:
            leases = list(self._leases.values())
            self._leases.clear()
        for lease in leases:
            self._drop(lease)

    def _make(self, lease: Lease[Kept], make: Callable[[], Kept]) -> Kept:
        with lease.made:
            if lease.plan is None:
                lease.plan = make()
                self._made += 1
                self._trim()
            return lease.plan

    def _trim(self) -> None:
        with self._lock:
            excess = len(self._leases) - self._limit
            idle = [key for key, lease in self._leases.items() if lease.plan is not None][: max(excess, 0)]
            dropped = [self._leases.pop(key) for key in idle]
        for lease in dropped:
            self._dropped += 1
            self._drop(lease)

    def _drop(self, lease: Lease[Kept]) -> None:
        with self._lock:
            lease.dropped = True
            close = not lease.users
        if close and lease.plan is not None:
            lease.plan.close()

    def _forget(self, key: Hashable, lease: Lease[Kept]) -> None:
        with self._lock:
            lease.users -= 1
            if self._leases.get(key) is lease and lease.plan is None:
                del self._leases[key]
