"""What this process does not share with one that is forked from it.

A process that is forked has one thread. A lock that another one held at that moment would never be released there, and
what a thread does for others is not done. So locks are made here, and what has threads lets go of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from _thread import RLock as ReentrantLock


class Parting(Protocol):
    """What has something that belongs to one process."""

    def part(self) -> None:
        """In the process that was forked: let go of it. No other thread runs; locks of `new_lock` are free."""


_things: WeakSet[Parting] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def part_at_fork(thing: Parting) -> None:
    """Have `thing.part` called in every process that is forked while it lives."""
    _things.add(thing)


def new_lock() -> Lock:
    """Return a lock that nobody holds in a process that was just forked."""
    lock = Lock()
    _locks.add(lock)
    return lock


def new_re_lock() -> ReentrantLock:
    """Return a lock that the thread that holds it may take again; see `new_lock`."""
    lock = RLock()
    _locks.add(lock)
    return lock


def _part() -> None:
    for lock in (*_locks, *_locks_of_properties()):
        lock._at_fork_reinit()  # as the standard library does with its own
    for thing in list(_things):
        thing.part()


def _locks_of_properties() -> Iterator[Any]:
    """Until Python 3.12 a `cached_property` of a class has a lock, which is held while one of any object is made."""
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _OURS]
    classes = {each for module in ours for each in list(vars(module).values()) if isinstance(each, type)}
    for attribute in [each for owner in classes for each in list(vars(owner).values())]:
        if isinstance(attribute, cached_property) and hasattr(attribute, "lock"):
            yield attribute.lock


_OURS = ("nnadapter", "partition")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_part)
