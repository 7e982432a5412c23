"""What is remembered to save work: bounded in number, the one used longest ago dropped first, and counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

from nnadapter.process.forking import new_lock

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
