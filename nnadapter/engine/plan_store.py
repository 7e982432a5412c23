"""Cache of the compiled plans of a session, bounded in number and in bytes.

Memory shared by plans counts once. The last used plan is never evicted, so its memory does not count. Plans used once
are evicted first, least recently used first: shapes that grow at each run never recur, and must not evict recurring
ones. A plan made again soon after its eviction counts as used twice. Source: 2Q (Johnson and Shasha, VLDB 1994).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar
from weakref import proxy

from nnadapter.errors import ClosedError, NNAdapterError
from nnadapter.process.resources import Closable, close_all, new_lock
from nnadapter.records import dataclass
from nnadapter.traces.trace import PLAN, SESSION, SILENT, WAIT, Trace


class Holding(NamedTuple):
    """Memory of one plan in bytes."""

    own_bytes: int
    shared_bytes: Mapping[Hashable, int]
    """Memory that other plans may share, by the identity of the memory."""


_NOTHING = Holding(0, {})


class PlanMemory:
    """Sum of the memory of all plans, as they last reported it. Not thread-safe.

    If an interrupt breaks off an update, `_is_counted` is False, and the next query counts again.
    """

    def __init__(self) -> None:
        self._holdings: dict[object, Holding] = {}
        self._shared: dict[Hashable, tuple[int, int]] = {}
        self._total_bytes = 0
        self._is_counted = True

    @property
    def total_bytes(self) -> int:
        self._count()
        return self._total_bytes

    def update(self, plan: object, holding: Holding) -> None:
        if self._holdings.get(plan) != holding:
            self._change(plan, holding)

    def forget(self, plan: object) -> None:
        self._change(plan, None)

    def freed_bytes(self, last: object) -> int:
        """Return the bytes that dropping every plan would free; shared memory of the plan `last` stays."""
        return self.total_bytes - sum(self._holdings.get(last, _NOTHING).shared_bytes.values())

    def _change(self, plan: object, holding: Holding | None) -> None:
        self._count()
        previous = self._holdings.get(plan, _NOTHING)
        self._is_counted = False
        if holding is None:
            self._holdings.pop(plan, None)
        else:
            self._holdings[plan] = holding
        self._subtract(previous)
        self._add(holding or _NOTHING)
        self._is_counted = True

    def _count(self) -> None:
        if self._is_counted:
            return
        self._shared.clear()
        self._total_bytes = 0
        for holding in self._holdings.values():
            self._add(holding)
        self._is_counted = True

    def _subtract(self, holding: Holding) -> None:
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
            holders, known_bytes = shared.get(key, (0, 0))
            shared[key] = holders + 1, nbytes
            total_bytes += nbytes - known_bytes
        self._total_bytes = total_bytes


PLAN_FOR_EACH = "a plan for every set of input shapes"
"""Report text for models without dynamic plans, followed by the reason."""
_EVICTED_KEYS_PER_PLAN = 4


_IN_USE = -1
"""Marks a plan to query again, since its memory may change during a use."""


class CacheablePlan(Closable, Protocol):
    """Plan that the cache can contain."""

    @property
    def holding(self) -> Holding:
        pass


PlanT = TypeVar("PlanT", bound=CacheablePlan)


class ExistingOnly:
    """Key of a use that takes only existing plans, and never waits."""


class NotMadeError(NNAdapterError):
    """A use that takes only existing plans finds none. Internal to this package."""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Usage counts of the plans of a session."""

    in_cache: int
    compiled: int
    reused: int
    evicted: int
    memory_bytes: int = 0
    served_shapes_text: str = ""
    """Report text on the shapes that plans serve; empty while only one set was seen."""


class Lease(Generic[PlanT]):
    """Cache entry of a plan. A plan in use is not closed."""

    __slots__ = ("dropped", "made", "plan", "reported_at", "reuse_count", "was_evicted")

    def __init__(self, *, was_evicted: bool = False) -> None:
        self.was_evicted = was_evicted
        self.reuse_count = 0
        """Uses after the first; approximate, since threads count without a lock."""
        self.reported_at = _IN_USE
        """Value of `reuse_count` when the plan last reported its memory while unused."""
        self.plan: PlanT | None = None
        self.dropped = False
        self.made = new_lock()


class PlanCache(Generic[PlanT]):
    """Plans by key. Each plan is made once, even if several threads request it at the same time.

    A use is identified by a new `object()`. A `finally` around `take` and the work with the plan ends the use: first
    `users.pop(use, None)`, a C call that no interrupt can split, then `close_unused()`. After an interrupt between
    them, the next use closes the plan.
    """

    def __init__(self, limit: int, limit_bytes: int, trace: Trace = SILENT) -> None:
        self._trace = trace
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._leases: OrderedDict[Hashable, Lease[PlanT]] = OrderedDict()
        self._unfinished: dict[Lease[PlanT], Hashable] = {}
        """Leases of plans that are being made or that failed, with their keys."""
        self._memory = PlanMemory()
        self._lock = new_lock()
        self.users: dict[object, Lease[PlanT]] = {}
        self._evicted_keys: OrderedDict[Hashable, None] = OrderedDict()
        self._dropped_leases: list[Lease[PlanT]] = []
        self._made_count = self._reuse_count = self._dropped_count = 0
        self._close_last: Sequence[Closable] | None = None
        self._is_tidy = True
        """True if no plan needs to be closed or forgotten when a use ends."""

    @property
    def counts(self) -> PlanCounts:
        with self._lock:
            for lease in self._leases.values():
                lease.reported_at = _IN_USE
            self._update_memory()
            reuse_count = self._reuse_count + sum(lease.reuse_count for lease in self._leases.values())
            return PlanCounts(
                len(self._leases), self._made_count, reuse_count, self._dropped_count, self._memory.total_bytes
            )

    @property
    def made_count(self) -> int:
        return self._made_count

    @property
    def newest(self) -> PlanT | None:
        with self._lock:
            return next((lease.plan for lease in reversed(self._leases.values()) if lease.plan is not None), None)

    @property
    def cached(self) -> tuple[PlanT, ...]:
        with self._lock:
            return tuple(lease.plan for lease in self._leases.values() if lease.plan is not None)

    def take(self, use: object, key: Hashable, make: Callable[[], PlanT]) -> tuple[Lease[PlanT], PlanT]:
        """Return the lease and the plan of `key`, made if it is not cached.

        Raises ClosedError if the cache is closed, and NotMadeError if an `ExistingOnly` use, which is not counted,
        finds no plan.
        """
        is_existing_only = type(use) is ExistingOnly
        with self._lock:
            if self._close_last is not None:
                raise ClosedError("the session is closed; make another one")
            lease = self._leases.get(key)
            if is_existing_only and (lease is None or lease.plan is None):
                raise NotMadeError("no finished plan is cached for this key")
            if lease is None:
                self._is_tidy = False
                lease = Lease(was_evicted=key in self._evicted_keys)
                self._unfinished[lease] = key
                self._leases[key] = lease
            else:
                self._leases.move_to_end(key)
            self.users[use] = lease
            if lease.plan is not None:
                if not is_existing_only:
                    lease.reuse_count += 1
                return lease, lease.plan
        return lease, self._make(lease, key, make)

    def take_again(self, use: object, lease: Lease[PlanT]) -> bool:
        """Take the plan of a lease again; return False if it was dropped."""
        self.users[use] = lease  # registered before the check: a dropping thread sets `dropped` before it reads users
        if lease.dropped:
            return False
        lease.reuse_count += 1
        return True

    def drop_unless_used_again(self, key: Hashable) -> bool:
        """Drop the plan of `key` if it was used only once; return True if it was dropped."""
        with self._lock:
            lease = self._leases.get(key)
            used_once = lease is not None and lease.plan is not None and not lease.reuse_count
            if used_once:
                self._dropped_count += 1
                self._drop(key)
        self.close_unused()
        return used_once

    def drop(self, lease: Lease[PlanT]) -> None:
        with self._lock:
            for key, candidate in list(self._leases.items()):
                if candidate is lease:
                    self._dropped_count += 1
                    self._drop(key)

    def drop_all(self) -> None:
        """Drop every cached plan; `close_unused` closes them."""
        with self._lock:
            for key in list(self._leases):
                self._dropped_count += 1
                self._drop(key)

    def make_room(self) -> bool:
        """Close the next idle plan to be evicted; return False if all are in use."""
        with self._lock:
            busy = list(self.users.values())
            idle = [entry for entry in self._leases.items() if entry[1].plan is not None and entry[1] not in busy]
            if not idle:
                return False
            self._drop_for_room(min(idle, key=_is_reused)[0])
        self.close_unused()
        return True

    def room_maker(self) -> Callable[[], bool]:
        """Return `make_room` with a weak reference to the cache, so that plans do not keep it alive."""
        reference: Self = proxy(self)
        return lambda: reference.make_room()

    def close_unused(self) -> None:
        if self._is_tidy:
            return
        with self._lock:
            busy = list(self.users.values())
            for lease, key in list(self._unfinished.items()):
                if lease.plan is None and lease in busy:
                    continue
                if lease.plan is None and self._leases.get(key) is lease:
                    del self._leases[key]
                del self._unfinished[lease]
            closing: list[Closable] = [
                dropped_lease.plan
                for dropped_lease in self._dropped_leases
                if dropped_lease not in busy and dropped_lease.plan is not None
            ]
            self._dropped_leases = [lease for lease in self._dropped_leases if lease in busy]
            if self._close_last and not busy:
                closing.extend(self._close_last)
                self._close_last = ()
            self._is_tidy = not (self._dropped_leases or self._close_last or self._unfinished)
        close_all(closing)

    def close(self, close_last: Sequence[Closable] = ()) -> None:
        """Drop every plan, then close `close_last`; a plan in use is closed after its use."""
        with self._lock:
            if self._close_last is None:
                self._close_last = close_last
            self._is_tidy = False
            for key in list(self._leases):
                self._drop(key)
        self.close_unused()

    def _make(self, lease: Lease[PlanT], key: Hashable, make: Callable[[], PlanT]) -> PlanT:
        wait_start = self._trace.timestamp()
        with lease.made:
            if lease.plan is not None:
                self._trace.add(SESSION, WAIT, "wait for a plan that another thread makes", wait_start, {})
                return lease.plan
            with self._trace.span(SESSION, PLAN, "make a plan"):
                plan = make()
            with self._lock:
                lease.plan = plan
                self._unfinished.pop(lease, None)
                if self._leases.get(key) is lease:
                    self._leases.move_to_end(key)
                self._made_count += 1
                self._trim()
        self.close_unused()
        return plan

    def _trim(self) -> None:
        if len(self._leases) > 1:
            self._update_memory()
        last = next((lease for lease in reversed(self._leases.values()) if lease.plan is not None), None)
        if last is None:
            return
        if len(self._leases) <= self._limit and self._memory.freed_bytes(last) <= self._limit_bytes:
            return
        idle = [(key, lease) for key, lease in self._leases.items() if lease.plan is not None and lease is not last]
        may_go = sorted(idle, key=_is_reused)
        most = self._limit - (len(self._leases) - len(idle))
        for remaining, (key, _) in zip(range(len(may_go), 0, -1), may_go, strict=True):
            if remaining <= most and self._memory.freed_bytes(last) <= self._limit_bytes:
                break
            self._drop_for_room(key)

    def _update_memory(self) -> None:
        for lease in [lease for lease in self._leases.values() if lease.reported_at != lease.reuse_count]:
            reuse_count, plan = lease.reuse_count, lease.plan
            if plan is not None:
                is_used = lease in list(self.users.values())
                self._memory.update(lease, plan.holding)
                lease.reported_at = _IN_USE if is_used else reuse_count

    def _drop_for_room(self, key: Hashable) -> None:
        self._dropped_count += 1
        self._drop(key)
        self._evicted_keys[key] = None
        while len(self._evicted_keys) > _EVICTED_KEYS_PER_PLAN * self._limit:
            self._evicted_keys.popitem(last=False)

    def _drop(self, key: Hashable) -> None:
        lease = self._leases[key]
        lease.dropped, self._is_tidy = True, False
        self._memory.forget(lease)
        self._reuse_count += lease.reuse_count
        del self._leases[key]
        self._dropped_leases.append(lease)


def _is_reused(item: tuple[Hashable, Lease[Any]]) -> bool:
    _, lease = item
    return bool(lease.reuse_count) or lease.was_evicted
