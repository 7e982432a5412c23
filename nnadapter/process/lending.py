"""Things that serve one user at a time, made as they are needed and lent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nnadapter.process.forking import new_lock

Thing = TypeVar("Thing")


class ObjectPool(Generic[Thing]):
    """Lends things, each to one user at a time; safe to use from many threads.

    Plans of many segments have thousands, so each is small.

    A user is a new `object()`. It ends its use by `users.pop(user, None)`, as the first call of a `finally` around
    `take` and the use: that call is all of C, so no interrupt comes before it or into it, and it takes no lock.

    Args:
        make: makes one.
        arguments: of `make`.
    """

    __slots__ = ("_arguments", "_lock", "_make", "all", "users")

    def __init__(self, make: Callable[..., Thing], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._lock = new_lock()
        self.all: list[Thing] = []
        """What was made so far."""
        self.users: dict[object, Thing] = {}
        """Who has which now."""

    def take(self, user: object) -> Thing:
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

    def _free(self) -> Thing | None:
        """What nobody has now."""
        # A list first: others pop without the lock, and the collector, if a map were made here, may let them.
        borrowed_ids = set(map(id, list(self.users.values())))
        return next((thing for thing in self.all if id(thing) not in borrowed_ids), None)

    def clear(self) -> list[Thing]:
        """Forget everything that was made, and return it."""
        with self._lock:
            objects = list(self.all)
            self.all.clear()
            return objects
