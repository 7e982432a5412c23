"""Resources of the process: locks and state across forks, bounded caches, pools, and closing of drivers' objects."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet, ref

from nnadapter.errors import FAILURES, DriverWarning, describe

if TYPE_CHECKING:
    from _thread import RLock as ReentrantLock


class ForkAware(Protocol):
    """What has something that belongs to one process."""

    def after_fork(self) -> None:
        """In the process that was forked: let go of it. No other thread runs; locks of `new_lock` are free."""


_registered: WeakSet[ForkAware] = WeakSet()
_locks: set[ref[Any]] = set()
"""Those that are there: plans of many segments make thousands."""
_forget = _locks.discard
"""A lock that goes takes itself out, all in C."""


class Threads:
    """Threads of a library, from when this is made on: a process that is forked does not have them."""

    def __init__(self) -> None:
        self.are_gone = False
        """Whether this process was forked since."""
        register_after_fork(self)

    def after_fork(self) -> None:
        self.are_gone = True


def register_after_fork(thing: ForkAware) -> None:
    """Have `after_fork` of an object called in every process that is forked while it lives."""
    _registered.add(thing)


def new_lock() -> Lock:
    """Return a lock that nobody holds in a process that was just forked."""
    lock = Lock()
    _locks.add(ref(lock, _forget))
    return lock


def new_re_lock() -> ReentrantLock:
    """Return a lock that the thread that holds it may take again; see `new_lock`."""
    lock = RLock()
    _locks.add(ref(lock, _forget))
    return lock


def _part() -> None:
    for lock in (*filter(None, [reference() for reference in _locks.copy()]), *_of_properties):
        lock._at_fork_reinit()  # as the standard library does with its own
    for thing in list(_registered):
        thing.after_fork()


_OURS = ("nnadapter", "partition")
_of_properties: list[Any] = []
_scanned_modules: set[str] = set()
"""Modules that were looked through for these."""


def _find_locks_of_properties() -> None:
    """Until Python 3.12 a `cached_property` of a class has a lock, which is held while one of any object is made.

    They are found before a fork: to look at all classes in the new process would copy the pages that they lie on.
    """
    modules = sys.modules.copy()  # in one step: a list of pairs lets the collector run, and others import meanwhile
    unvisited_modules = [
        (name, module) for name, module in modules.items() if name.startswith(_OURS) and name not in _scanned_modules
    ]
    _scanned_modules.update(name for name, _ in unvisited_modules)
    for name, module in unvisited_modules:
        for owner in list(vars(module).values()):
            if isinstance(owner, type) and owner.__module__ == name:
                every: list[Any] = [
                    attribute for attribute in vars(owner).values() if type(attribute) is cached_property
                ]
                _of_properties.extend(descriptor.lock for descriptor in every)


if hasattr(os, "register_at_fork"):
    if hasattr(cached_property(str), "lock"):
        os.register_at_fork(before=_find_locks_of_properties)
    os.register_at_fork(after_in_child=_part)


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class CacheCounts:
    """How the caches of one name were used in this process. Many threads at once may count too few."""

    name: str
    hits: int = 0
    misses: int = 0
    failures: int = 0
    """Attempts to make what would have been kept that failed, so that the work is done without it."""
    dropped: int = 0


_counts: dict[str, CacheCounts] = {}
_functions: dict[str, Any] = {}
"""What `memoize` made, by name."""


def cache_counts() -> tuple[CacheCounts, ...]:
    """The counts, as they are now, of every cache that was used, by name."""
    of_functions = {
        name: _of_function(name, cached_function.cache_info()) for name, cached_function in _functions.items()
    }
    counts_by_name = {**{name: replace(counts) for name, counts in _counts.items()}, **of_functions}
    return tuple(
        counts for _, counts in sorted(counts_by_name.items()) if counts.hits or counts.misses or counts.failures
    )


def _of_function(name: str, info: Any) -> CacheCounts:
    return CacheCounts(name, info.hits, info.misses, dropped=info.misses - info.currsize)


def memoize(limit: int) -> Callable[[Function], Function]:
    """Return a decorator that remembers so many results of a pure function by its arguments."""

    def decorate(function: Function) -> Function:
        cached_function = lru_cache(maxsize=limit)(function)
        _functions[f"{function.__module__.removeprefix('nnadapter.')}.{function.__qualname__}"] = cached_function
        return cached_function  # type: ignore[return-value]  # it is called as the function is

    return decorate


def counts_of(name: str) -> CacheCounts:
    """The counts of the caches of one name."""
    return _counts.setdefault(name, CacheCounts(name))


class Cache(Generic[Key, Value]):
    """Values by key; safe to use from many threads. None is no value.

    Args:
        name: what it remembers; caches of one name are counted together.
        limit: how many values are kept.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.counts = counts_of(name)
        self._limit = limit
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = new_lock()

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """The value of a key, None if there is none."""
        with self._lock:
            cached_value = self._kept.get(key)
            if cached_value is not None:
                self._kept.move_to_end(key)
        if cached_value is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return cached_value

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, and return what is kept: the one that is there, if another thread was first."""
        with self._lock:
            initial_count = len(self._kept)
            cached_value = self._kept.setdefault(key, value)
            if len(self._kept) == initial_count:  # what is new stands at the end; keys may take long to hash
                self._kept.move_to_end(key)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
                self.counts.dropped += 1
        return cached_value

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made now if it is not kept; two threads may both make it."""
        cached_value = self.get(key)
        return self.put(key, make()) if cached_value is None else cached_value

    def drop(self, key: Key) -> Value | None:
        """Forget the value of a key, and return it if there was one."""
        with self._lock:
            return self._kept.pop(key, None)

    def values(self) -> tuple[Value, ...]:
        """What is kept, the value used longest ago first."""
        with self._lock:
            return tuple(self._kept.values())

    def keys(self) -> tuple[Key, ...]:
        """What is kept, by key, the one used longest ago first."""
        with self._lock:
            return tuple(self._kept)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_first = iter([True])
"""For whoever comes first in this process."""


_FROZEN_AT_START = 1_000
"""Python 3.12 starts with a few hundred objects in the permanent generation; other versions with none."""


def paused_collection(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Keep the collector of cycles from running while the function does; it goes on as before when that ends.

    Where several threads pause it, it goes on when the one that stopped it ends: that takes time, and no lock.
    """

    @wraps(function)
    def paused(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        enabled = gc.isenabled()
        try:
            gc.disable()
            return function(*args, **kwargs)
        finally:
            # An interrupt comes where a function of Python starts, a loop turns, or behind a call: not before this one.
            if enabled:
                gc.enable()
                if next(_first, False) and gc.get_freeze_count() < _FROZEN_AT_START:  # else the program froze objects
                    try:
                        gc.freeze()
                    finally:
                        gc.unfreeze()

    return paused


class Closable(Protocol):
    """What has a `close`."""

    def close(self) -> None:
        """Free it."""


def close_all(things: Iterable[Closable]) -> None:
    """Close every one of `things`. What they raise is warned of, all at once, when all of them were asked to close."""
    failures: list[str] = []
    for thing in (iterator := iter(things)):
        try:
            failures += failures_of(thing.close, f"{type(thing).__name__}.close")
        except BaseException:
            close_all(iterator)
            raise
    warn_of_failures(failures)


def failures_of(close: Callable[[], object], label: str) -> Sequence[str]:
    """Call what closes or frees something that a driver made, and return what it raised, in words; empty if nothing.

    Args:
        close: what is called.
        label: it is called in messages.
    """
    try:
        close()
    except FAILURES as error:  # a driver may raise anything; this is its border
        return (f"{label} raised {describe(error)}",)
    return ()


def warn_of_failures(failures: Sequence[str]) -> None:
    """Warn of all that `failures_of` returned, if there is anything."""
    if failures:
        warnings.warn("; ".join(failures) + "; report it to the vendor", DriverWarning, stacklevel=3)


Item = TypeVar("Item")


class ObjectPool(Generic[Item]):
    """Lends things, each to one user at a time; safe to use from many threads.

    Plans of many segments have thousands, so each is small.

    A user is a new `object()`. It ends its use by `users.pop(user, None)`, as the first call of a `finally` around
    `acquire` and the use: that call is all of C, so no interrupt comes before it or into it, and it takes no lock.

    Args:
        make: makes one.
        arguments: of `make`.
    """

    __slots__ = ("_arguments", "_lock", "_make", "all", "users")

    def __init__(self, make: Callable[..., Item], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._lock = new_lock()
        self.all: list[Item] = []
        """What was made so far."""
        self.users: dict[object, Item] = {}
        """Who has which now."""

    def acquire(self, user: object) -> Item:
        """Lend what nobody has, else a new one."""
        with self._lock:
            if not self.users and self.all:  # nearly always
                self.users[user] = self.all[0]
                return self.all[0]
            loan = self._free() if self.all else None
            if loan is None:
                loan = self._make(*self._arguments)
                self.all.append(loan)
            self.users[user] = loan
            return loan

    def _free(self) -> Item | None:
        """What nobody has now."""
        # A list first: others pop without the lock, and the collector, if a map were made here, may let them.
        borrowed_ids = set(map(id, list(self.users.values())))
        return next((thing for thing in self.all if id(thing) not in borrowed_ids), None)

    def clear(self) -> list[Item]:
        """Forget everything that was made, and return it."""
        with self._lock:
            objects = list(self.all)
            self.all.clear()
            return objects
