"""Resources of the process: locks and state across forks, bounded caches, object pools, closing of objects."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, lru_cache, wraps
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet, ref

from nnadapter.errors import FAILURES, DriverWarning, describe
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    from _thread import RLock as ReentrantLock


class ForkAware(Protocol):
    """Object with state that belongs to one process."""

    def after_fork(self) -> None:
        """Drop the state in a forked process. The process has one thread, and its locks from `new_lock` are free."""


_registered: WeakSet[ForkAware] = WeakSet()
_locks: set[ref[Any]] = set()
_forget = _locks.discard


class Threads:
    """Record of whether a library's threads ended because this process was forked."""

    def __init__(self) -> None:
        self.are_gone = False
        register_after_fork(self)

    def after_fork(self) -> None:
        self.are_gone = True


def register_after_fork(thing: ForkAware) -> None:
    """Call the object's `after_fork` in every process that is forked during its lifetime."""
    _registered.add(thing)


def new_lock() -> Lock:
    """Return a lock that is free in a newly forked process."""
    lock = Lock()
    _locks.add(ref(lock, _forget))
    return lock


def new_re_lock() -> ReentrantLock:
    """Return a reentrant lock; see `new_lock`."""
    lock = RLock()
    _locks.add(ref(lock, _forget))
    return lock


def _part() -> None:
    for lock in (*filter(None, [reference() for reference in _locks.copy()]), *_of_properties):
        lock._at_fork_reinit()
    for thing in list(_registered):
        thing.after_fork()


_OURS = ("nnadapter", "partition")
_of_properties: list[Any] = []
_scanned_modules: set[str] = set()


def _find_locks_of_properties() -> None:
    """Find the locks of `cached_property`, which Python before 3.12 holds during computation.

    Called before a fork: looking at all classes in the child would copy their memory pages.
    """
    modules = sys.modules.copy()  # copied in one step: other threads import meanwhile
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
    """Usage counts of all caches with one name. They may be too low, because threads count without a lock."""

    name: str
    hits: int = 0
    misses: int = 0
    failures: int = 0
    """Failed attempts to make a cached object; the work is then done without it."""
    dropped: int = 0


_counts: dict[str, CacheCounts] = {}
_functions: dict[str, Any] = {}


def cache_counts() -> tuple[CacheCounts, ...]:
    """Return the counts of every cache that was used, sorted by name."""
    counts_by_name = {name: replace(counts) for name, counts in _counts.items()}
    for name, cached_function in _functions.items():
        info = cached_function.cache_info()
        counts_by_name[name] = CacheCounts(name, info.hits, info.misses, dropped=info.misses - info.currsize)
    return tuple(
        counts for _, counts in sorted(counts_by_name.items()) if counts.hits or counts.misses or counts.failures
    )


def memoize(limit: int) -> Callable[[Function], Function]:
    """Return a decorator that caches up to `limit` results of a pure function."""

    def decorate(function: Function) -> Function:
        cached_function = lru_cache(maxsize=limit)(function)
        _functions[f"{function.__module__.removeprefix('nnadapter.')}.{function.__qualname__}"] = cached_function
        return cached_function  # type: ignore[return-value]  # it is called as the function is

    return decorate


def counts_of(name: str) -> CacheCounts:
    """Return the common counts of all caches with a name."""
    return _counts.setdefault(name, CacheCounts(name))


class Cache(Generic[Key, Value]):
    """Least-recently-used cache. Thread-safe. Values must not be None.

    Caches with the same name share their counts.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.counts = counts_of(name)
        self._limit = limit
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = new_lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
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
        """Store a value, and return the cached one, which may come from another thread."""
        with self._lock:
            initial_count = len(self._kept)
            cached_value = self._kept.setdefault(key, value)
            if len(self._kept) == initial_count:  # new keys are at the end already; hashing a key may be slow
                self._kept.move_to_end(key)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
                self.counts.dropped += 1
        return cached_value

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the cached value, made if needed; two threads may both make it."""
        cached_value = self.get(key)
        return self.put(key, make()) if cached_value is None else cached_value

    def drop(self, key: Key) -> Value | None:
        with self._lock:
            return self._kept.pop(key, None)

    def values(self) -> tuple[Value, ...]:
        with self._lock:
            return tuple(self._kept.values())

    def keys(self) -> tuple[Key, ...]:
        with self._lock:
            return tuple(self._kept)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_first = iter([True])


_FROZEN_AT_START = 1_000
"""Upper bound of permanent objects before any `gc.freeze`; Python 3.12 starts with a few hundred."""


def paused_collection(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator that pauses the garbage collector while a function runs.

    If calls in several threads overlap, only the first call pauses and resumes the collector, so no lock is needed.
    """

    @wraps(function)
    def paused(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        enabled = gc.isenabled()
        try:
            gc.disable()
            return function(*args, **kwargs)
        finally:
            # an interrupt cannot come between here and the call of `enable`
            if enabled:
                gc.enable()
                if next(_first, False) and gc.get_freeze_count() < _FROZEN_AT_START:
                    try:
                        gc.freeze()
                    finally:
                        gc.unfreeze()

    return paused


class Closable(Protocol):
    """Object with a `close` method."""

    def close(self) -> None:
        pass


def close_all(things: Iterable[Closable]) -> None:
    """Close every object, then warn of all errors at once."""
    failures: list[str] = []
    for thing in (iterator := iter(things)):
        try:
            failures += failures_of(thing.close, f"{type(thing).__name__}.close")
        except BaseException:
            close_all(iterator)
            raise
    warn_of_failures(failures)


def failures_of(close: Callable[[], object], label: str) -> Sequence[str]:
    """Call `close` of a driver's object; return its error as text, prefixed with `label`, or nothing."""
    try:
        close()
    except FAILURES as error:  # a driver may raise anything
        return (f"{label} raised {describe(error)}",)
    return ()


def warn_of_failures(failures: Sequence[str]) -> None:
    """Warn of all errors that `failures_of` returned."""
    if failures:
        warnings.warn("; ".join(failures) + "; report it to the vendor", DriverWarning, stacklevel=3)


Item = TypeVar("Item")


class ObjectPool(Generic[Item]):
    """Pool of reusable objects, each for one user at a time. Thread-safe.

    Pools use little memory, because a plan may have thousands of pools. A user is a new `object()`. Callers put
    `acquire` and the use into `try`, and start `finally` with `users.pop(user, None)`: a single C call that no
    interrupt can split, without a lock.
    """

    __slots__ = ("_arguments", "_lock", "_make", "all", "users")

    def __init__(self, make: Callable[..., Item], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._lock = new_lock()
        self.all: list[Item] = []
        self.users: dict[object, Item] = {}

    def acquire(self, user: object) -> Item:
        with self._lock:
            if not self.users and self.all:
                self.users[user] = self.all[0]
                return self.all[0]
            loan = self._free() if self.all else None
            if loan is None:
                loan = self._make(*self._arguments)
                self.all.append(loan)
            self.users[user] = loan
            return loan

    def _free(self) -> Item | None:
        # a list first: other threads pop without the lock, and the collector may switch to them during a map
        borrowed_ids = set(map(id, list(self.users.values())))
        return next((thing for thing in self.all if id(thing) not in borrowed_ids), None)

    def clear(self) -> list[Item]:
        with self._lock:
            objects = list(self.all)
            self.all.clear()
            return objects
