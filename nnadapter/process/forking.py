"""What this process does not share with one that is forked from it.

A process that is forked has one thread. A lock that another one held at that moment would never be released there, and
what a thread does for others is not done. So locks are made here, and what has threads lets go of them.
"""

from __future__ import annotations

import os
import sys
from functools import cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, ref

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
