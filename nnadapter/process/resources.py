"""Object lifetimes: pools, closing what drivers made, and pausing the garbage collector.

Building large things without the garbage collector looking at them again and again.

What a model of many nodes is made into are millions of small objects that all stay. Python's collector visits them
each time their number has grown by a quarter, which takes up to a third of the time.

The first time in a process, modules and what they define are made as well, and the collector would look at all of it as
soon as it goes on: it is told that this is old, as it is once a collector has seen it. That is done once, as garbage in
it is found only when the collector next looks at everything.

Closing what drivers made: a `close` that raises must not cost a result, or keep the rest from being closed.

Memory of devices is freed in the same way.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from nnadapter.errors import FAILURES, DriverWarning, describe
from nnadapter.process.forking import new_lock

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_first = iter([True])
"""For whoever comes first in this process."""


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
                if next(_first, False) and not gc.get_freeze_count():  # else somebody keeps things out of its sight
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
