"""Compiled plans of a session, bounded in number and in the bytes that they hold together.

What plans hold together: their own memory, and what they share, once.

Dropping a plan frees what is its own, and of what it shares what no other plan holds. What the plan used last shares no
dropping frees: it is told, and does not count against a limit. A plan that nobody used since it was asked holds what it
told then, so a new plan asks two or three of them, however many there are.

The compiled plans of one session, one per set of input shapes: bounded in number and bytes, and counted.

What was used once is dropped first, the plan used longest ago before others: shapes that grow by one at each run never
come back, and shall not drive out those that do. A plan that is made again not long after it was dropped counts as used
twice, so that shapes which begin to come back get room. The one used last stays, however large it is.
Source: the idea of 2Q (Johnson and Shasha, VLDB 1994).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar
from weakref import proxy

from nnadapter.errors import ClosedError, NNAdapterError
from nnadapter.process.resources import Closable, close_all, new_lock
from nnadapter.traces.trace import PLAN, SESSION, SILENT, WAIT, Trace


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


PLAN_FOR_EACH = "a plan for every set of input shapes"
"""What is said where sizes cannot be left open, with the reason behind it."""
_GONE = 4
"""Keys that are remembered after their plans were dropped, times the plans that are kept."""


_IN_USE = -1
"""What plans hold may change while they are used."""


class HeldPlan(Closable, Protocol):
    """What is kept."""

    @property
    def holding(self) -> Holding:
        """The memory that it holds now."""


Kept = TypeVar("Kept", bound=HeldPlan)


class ExistingOnly:
    """A use that takes no plan but one that is made, and waits for none; see `PlanCache.take`."""


class NotMadeError(NNAdapterError):
    """The plan is not made, and its use takes only those that are. Nobody outside of this room sees it."""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """How the plans of a session were used."""

    in_cache: int
    compiled: int
    reused: int
    evicted: int
    memory_bytes: int = 0
    """What those kept hold together, as far as their devices say so."""
    served_shapes_text: str = ""
    """Which shapes a plan serves, and why not more, in words; empty as long as only one set of them was seen."""


class Lease(Generic[Kept]):
    """A plan, made or to be made; it is not closed while it is in use."""

    __slots__ = ("again", "came_back", "dropped", "made", "plan", "told")

    def __init__(self, *, came_back: bool = False) -> None:
        self.came_back = came_back
        """It was dropped a while ago, and is made again."""
        self.again = 0
        """Uses after the first; many threads at once may count too few."""
        self.told = _IN_USE
        """`again` when the plan told what it holds, while nobody used it."""
        self.plan: Kept | None = None
        self.dropped = False
        self.made = new_lock()


class PlanCache(Generic[Kept]):
    """Plans by key. A plan is made once, however many threads ask for it at the same time.

    A use is a new `object()`. It ends by `users.pop(use, None)`, as the first call of a `finally` around `take` and
    all that uses the plan, and then `close_unused()`. The first is a call of C, so no interrupt comes before it or into
    it; where one comes behind it, the next use closes what this one left.
    """

    def __init__(self, limit: int, limit_bytes: int, trace: Trace = SILENT) -> None:
        self._trace = trace
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._leases: OrderedDict[Hashable, Lease[Kept]] = OrderedDict()
        self._unmade: dict[Lease[Kept], Hashable] = {}
        """Those to be made, or that did not come to be, by what their plans are kept under."""
        self._memory = PlanMemory()
        """What is kept holds."""
        self._lock = new_lock()
        self.users: dict[object, Lease[Kept]] = {}
        """Who uses which plan now."""
        self._gone: OrderedDict[Hashable, None] = OrderedDict()
        """Keys of what was dropped for want of room, the last ones."""
        self._left: list[Lease[Kept]] = []
        """Dropped, and not closed yet."""
        self._made = self._used_again = self._dropped = 0
        self._at_end: Sequence[Closable] | None = None
        self._is_tidy = True
        """Nothing is to be closed or forgotten when a use ends."""

    @property
    def counts(self) -> PlanCounts:
        """How the plans were used so far."""
        with self._lock:
            for lease in self._leases.values():
                lease.told = _IN_USE
            self._ask()
            used_again = self._used_again + sum(lease.again for lease in self._leases.values())
            return PlanCounts(len(self._leases), self._made, used_again, self._dropped, self._memory.total_bytes)

    @property
    def made(self) -> int:
        """How many were made so far."""
        return self._made

    @property
    def newest(self) -> Kept | None:
        """The plan used last."""
        with self._lock:
            return next((lease.plan for lease in reversed(self._leases.values()) if lease.plan is not None), None)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The plans, the one used longest ago first."""
        with self._lock:
            return tuple(lease.plan for lease in self._leases.values() if lease.plan is not None)

    def take(self, use: object, key: Hashable, make: Callable[[], Kept]) -> tuple[Lease[Kept], Kept]:
        """Return the plan of `key`, made now if it is not kept, and what `take_again` takes.

        A use that is an `ExistingOnly` looks whether there is a plan, and is not counted.

        Raises:
            ClosedError: the cache is closed.
            NotMadeError: there is no plan as yet, and the use is an `ExistingOnly`.
        """
        only_made = type(use) is ExistingOnly
        with self._lock:
            if self._at_end is not None:
                raise ClosedError("the session is closed; make another one")
            lease = self._leases.get(key)
            if only_made and (lease is None or lease.plan is None):
                raise NotMadeError("the plan is not made")
            if lease is None:
                self._is_tidy = False  # it may not come to be made
                lease = Lease(came_back=key in self._gone)
                self._unmade[lease] = key
                self._leases[key] = lease
            else:
                self._leases.move_to_end(key)
            self.users[use] = lease
            if lease.plan is not None:
                if not only_made:
                    lease.again += 1
                return lease, lease.plan
        return lease, self._make(lease, key, make)

    def take_again(self, use: object, lease: Lease[Kept]) -> bool:
        """Take the plan of a lease once more, as by `take`; False if it is not kept any more."""
        self.users[use] = lease  # before it is looked at: who drops it looks at users after that
        if lease.dropped:
            return False
        lease.again += 1
        return True

    def drop_unless_used_again(self, key: Hashable) -> bool:
        """Drop the plan of `key` if it was used once; whether it was dropped."""
        with self._lock:
            lease = self._leases.get(key)
            used_once = lease is not None and lease.plan is not None and not lease.again
            if used_once:
                self._dropped += 1
                self._drop(key)
        self.close_unused()
        return used_once

    def drop(self, lease: Lease[Kept]) -> None:
        """Drop the plan of a lease, if it is kept still: who asks next makes another one."""
        with self._lock:
            for key, kept in list(self._leases.items()):
                if kept is lease:
                    self._dropped += 1
                    self._drop(key)

    def drop_all(self) -> None:
        """Drop every plan that is kept: who asks next makes another one. `close_unused` closes them."""
        with self._lock:
            for key in list(self._leases):
                self._dropped += 1
                self._drop(key)

    def make_room(self) -> bool:
        """Close the plan that would be dropped next, of those that nobody uses now; whether there was one."""
        with self._lock:
            used = list(self.users.values())
            idle = [entry for entry in self._leases.items() if entry[1].plan is not None and entry[1] not in used]
            if not idle:
                return False
            self._drop_for_room(min(idle, key=_recurs)[0])
        self.close_unused()
        return True

    def room_maker(self) -> Callable[[], bool]:
        """`make_room` for the plans themselves: they hold nothing of this, so no cycle keeps what nobody has."""
        own: Self = proxy(self)
        return lambda: own.make_room()

    def close_unused(self) -> None:
        """Close what was dropped and nobody uses any more."""
        if self._is_tidy:
            return  # as after nearly every run
        with self._lock:
            used = list(self.users.values())
            for lease, key in list(self._unmade.items()):
                if lease.plan is None and lease in used:
                    continue
                if lease.plan is None and self._leases.get(key) is lease:
                    del self._leases[key]
                del self._unmade[lease]
            closing: list[Closable] = [
                dropped_lease.plan
                for dropped_lease in self._left
                if dropped_lease not in used and dropped_lease.plan is not None
            ]
            self._left = [lease for lease in self._left if lease in used]
            if self._at_end and not used:
                closing.extend(self._at_end)
                self._at_end = ()
            self._is_tidy = not (self._left or self._at_end or self._unmade)
        close_all(closing)

    def close(self, at_end: Sequence[Closable] = ()) -> None:
        """Drop every plan, then close `at_end`; what is in use is closed when its use ends, `at_end` after it."""
        with self._lock:
            if self._at_end is None:
                self._at_end = at_end
            self._is_tidy = False  # also where there never was a plan
            for key in list(self._leases):
                self._drop(key)
        self.close_unused()

    def _make(self, lease: Lease[Kept], key: Hashable, make: Callable[[], Kept]) -> Kept:
        asked = self._trace.timestamp()
        with lease.made:
            if lease.plan is not None:
                self._trace.add(SESSION, WAIT, "wait for a plan that another thread makes", asked, {})
                return lease.plan
            with self._trace.span(SESSION, PLAN, "make a plan"):
                plan = make()
            with self._lock:
                lease.plan = plan
                self._unmade.pop(lease, None)
                if self._leases.get(key) is lease:
                    self._leases.move_to_end(key)  # others were used while it was made
                self._made += 1
                self._trim()
        self.close_unused()
        return plan

    def _trim(self) -> None:
        """Drop what is too much: first what was used once, the one used longest ago first; the one used last never."""
        if len(self._leases) > 1:  # else nothing follows from what they hold
            self._ask()
        last = next((lease for lease in reversed(self._leases.values()) if lease.plan is not None), None)
        if last is None:
            return  # closed while the plan was made
        if len(self._leases) <= self._limit and self._memory.freed_bytes(last) <= self._limit_bytes:
            return  # nearly always
        kept = [(key, lease) for key, lease in self._leases.items() if lease.plan is not None and lease is not last]
        may_go = sorted(kept, key=_recurs)
        most = self._limit - (len(self._leases) - len(kept))
        for left, (key, _) in zip(range(len(may_go), 0, -1), may_go, strict=True):
            if left <= most and self._memory.freed_bytes(last) <= self._limit_bytes:
                break
            self._drop_for_room(key)

    def _ask(self) -> None:
        """Ask the plans that were used since they were asked what they hold."""
        for lease in [lease for lease in self._leases.values() if lease.told != lease.again]:
            again, plan = lease.again, lease.plan
            if plan is not None:
                is_used = lease in list(self.users.values())
                self._memory.tell(lease, plan.holding)
                lease.told = _IN_USE if is_used else again

    def _drop_for_room(self, key: Hashable) -> None:
        """Drop a plan, and remember that there was one."""
        self._dropped += 1
        self._drop(key)
        self._gone[key] = None
        while len(self._gone) > _GONE * self._limit:
            self._gone.popitem(last=False)

    def _drop(self, key: Hashable) -> None:
        """Take a lease out, to be closed when nobody uses it."""
        lease = self._leases[key]
        lease.dropped, self._is_tidy = True, False
        self._memory.forget(lease)
        self._used_again += lease.again
        del self._leases[key]
        self._left.append(lease)


def _recurs(kept: tuple[Hashable, Lease[Any]]) -> bool:
    """Whether a plan was used more than once."""
    _, lease = kept
    return bool(lease.again) or lease.came_back
