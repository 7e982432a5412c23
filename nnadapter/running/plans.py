"""The compiled plans of one session, one per set of input shapes: bounded in number and bytes, and counted.

The plan used longest ago is dropped first. The one used last stays, however large it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from nnadapter.errors import ClosedError
from nnadapter.process.closing import Closable, close_all


class HeldPlan(Closable, Protocol):
    """What is kept."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds now."""


Kept = TypeVar("Kept", bound=HeldPlan)


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """How the plans of a session were used."""

    kept: int
    made: int
    used_again: int
    dropped: int
    memory_bytes: int = 0
    """What those kept hold, as far as their devices say so."""


class Lease(Generic[Kept]):
    """A plan in use: it is not closed before it is given back."""

    __slots__ = ("again", "dropped", "made", "plan", "users")

    def __init__(self) -> None:
        self.again = 0
        """Runs of plans that need not be held while they run; many threads at once may count too few."""
        self.plan: Kept | None = None
        self.users = 0
        self.dropped = False
        self.made = threading.Lock()


class PlanCache(Generic[Kept]):
    """Plans by key. A plan is made once, however many threads ask for it at the same time."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._leases: OrderedDict[Hashable, Lease[Kept]] = OrderedDict()
        self._lock = threading.Lock()
        self._made = self._used_again = self._dropped = self._users = 0
        self._at_end: Sequence[Closable] | None = None

    @property
    def counts(self) -> PlanCounts:
        """How the plans were used so far."""
        with self._lock:
            held = sum(lease.plan.memory_bytes for lease in self._leases.values() if lease.plan is not None)
            used_again = self._used_again + sum(lease.again for lease in self._leases.values())
            return PlanCounts(len(self._leases), self._made, used_again, self._dropped, held)

    @property
    def newest(self) -> Kept | None:
        """The plan used last."""
        with self._lock:
            return next((lease.plan for lease in reversed(self._leases.values()) if lease.plan is not None), None)

    def take(self, key: Hashable, make: Callable[[], Kept]) -> tuple[Lease[Kept], Kept]:
        """Return the plan of `key`, made now if it is not kept, and the lease to give back.

        Raises:
            ClosedError: the cache is closed.
        """
        with self._lock:
            if self._at_end is not None:
                raise ClosedError("the session is closed; make another one")
            lease = self._leases.get(key)
            if lease is None:
                lease = self._leases[key] = Lease()
            else:
                self._leases.move_to_end(key)
            lease.users += 1
            self._users += 1
            if lease.plan is not None:
                self._used_again += 1
                return lease, lease.plan
        try:
            return lease, self._make(lease, make)
        except BaseException:
            self._forget(key, lease)
            raise

    def take_again(self, lease: Lease[Kept]) -> bool:
        """Take the plan of a lease once more, to be given back as from `take`; False if it is not kept any more."""
        with self._lock:
            if lease.dropped or self._at_end is not None:
                return False
            lease.users += 1
            self._users += 1
            self._used_again += 1
            return True

    def give(self, lease: Lease[Kept]) -> None:
        """Give a lease back."""
        with self._lock:
            lease.users -= 1
            self._users -= 1
            if not lease.dropped and self._at_end is None:
                return  # as after nearly every run
            closing = [lease.plan] if lease.dropped and not lease.users and lease.plan is not None else []
            closing_too = self._last_words()
        close_all([*closing, *closing_too])

    def close(self, at_end: Sequence[Closable] = ()) -> None:
        """Drop every plan, then close `at_end`; what is in use is closed when it is given back, `at_end` after it."""
        with self._lock:
            if self._at_end is not None:
                return
            self._at_end = at_end
            leases = list(self._leases.values())
            self._leases.clear()
            idle = [plan for lease in leases if (plan := self._drop(lease)) is not None]
            last = self._last_words()
        close_all([*idle, *last])

    def _make(self, lease: Lease[Kept], make: Callable[[], Kept]) -> Kept:
        with lease.made:
            if lease.plan is not None:
                return lease.plan
            plan = make()
            with self._lock:
                lease.plan = plan
                self._made += 1
                idle = self._trim()
        close_all(idle)
        return plan

    def _trim(self) -> list[Kept]:
        """Drop what is too much, the plan used longest ago first and the one used last never; return what to close."""
        kept = [(key, lease.plan.memory_bytes) for key, lease in self._leases.items() if lease.plan is not None]
        held = sum(nbytes for _, nbytes in kept)
        idle = []
        for key, nbytes in kept[:-1]:
            if len(self._leases) <= self._limit and held <= self._limit_bytes:
                break
            held -= nbytes
            self._dropped += 1
            if (plan := self._drop(self._leases.pop(key))) is not None:
                idle.append(plan)
        return idle

    def _drop(self, lease: Lease[Kept]) -> Kept | None:
        """Mark a lease as dropped; return its plan if nobody uses it."""
        lease.dropped = True
        self._used_again += lease.again
        return None if lease.users else lease.plan

    def _last_words(self) -> Sequence[Closable]:
        """What is closed last, once the cache is closed and nobody uses a plan any more."""
        if self._at_end is None or self._users:
            return ()
        last, self._at_end = self._at_end, ()
        return last

    def _forget(self, key: Hashable, lease: Lease[Kept]) -> None:
        with self._lock:
            lease.users -= 1
            self._users -= 1
            # Others may still wait to make it; the last one that fails takes the lease away.
            if not lease.users and lease.plan is None and self._leases.get(key) is lease:
                del self._leases[key]
            last = self._last_words()
        close_all(last)
