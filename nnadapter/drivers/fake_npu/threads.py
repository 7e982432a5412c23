"""How many threads numpy's BLAS computes with, where several computations are under way at once.

OpenBLAS has one pool of threads per process. One computation may have all of it. Where several have, they wait for
each other's threads, which spin on the processors that the others need. So each computes with one thread then. Where
there are so many processors that a few callers leave most of them idle, those have half of the pool, one after the
other, and what they do beside products has the other half. As many compute at once as there are processors, and the
others wait for their turn, in the order in which they came: more would only hand Python's lock around, and the caches.

A caller that begins again in a moment counts as one who computes: threads that the others woke meanwhile would spin
beside it for longer than most runs take.

Small products have one thread, alone as well, where PyTorch is loaded: its threads spin behind each of its loops,
OpenBLAS's behind each product, and the ones wait for the others' turn on a processor then. It limits nobody who
computes beside it.

The number is the process's, and may change while others multiply: OpenBLAS reads it once, when a product begins
(`num_cpu_avail` in common_thread.h), and to set it is to store it (`goto_set_num_threads` in blas_server.c). It is put
back as it was when nobody computes any more.

Interrupts and handlers of signals come between any two steps. Who computes is noted in one step, and the number follows
from that: who finds that it does not sets it, and looks again. A handler that computes in the middle of this waits for
nothing: the lock is its own thread's, and who set the number goes on behind it. Who waits for its turn looks again
after a while, should nobody have called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic
from typing import Any

from nnadapter.process.cache import memoize
from nnadapter.process.forking import new_re_lock, register_after_fork
from nnadapter.process.processors import usable

_LOOK_SECONDS = 0.1
COMPANY_SECONDS = 0.05
"""For so long computations that ended count as others that compute; OpenBLAS's threads spin for half of it."""
_FEW = 3
"""Computations at most that share the pool where there are four times as many processors and more."""
_UNSETTLED = -1
_AFFIXES = tuple(product(("", "scipy_"), ("", "64_", "_64")))
"""Of the names of OpenBLAS's functions; those of numpy's and scipy's wheels have some."""


class Computation:
    """One computation in one thread, between `BlasThreads.begin` and `BlasThreads.make_room`.

    Args:
        threads: how many BLAS threads it wants at most; 0 for as many as there are.
        is_small: one is enough where nothing else is said.
    """

    __slots__ = ("called", "is_small", "thread", "threads")

    def __init__(self, threads: int = 0, *, is_small: bool = False) -> None:
        self.threads, self.is_small = threads, is_small
        self.thread = 0
        """In which it began."""
        self.called: SimpleQueue[None] | None = None
        """Gets an item when its turn may have come; None where it does not wait."""


class BlasThreads:
    """The threads of numpy's BLAS, and the computations that share them. Usable from many threads.

    A computation ends by `users.pop(it, None)`, as the first call of a `finally` around all of it, and `make_room`.

    Args:
        cores: processors that this process may use.
        clock: seconds.
    """

    def __init__(self, cores: int | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.users: dict[Computation, None] = {}
        """Those that compute, and those that wait behind them."""
        self.waits_for_company = False
        """The one that computes has fewer threads because others have ended just now; see `look_again`."""
        self._cores = usable() if cores is None else cores
        self._clock = clock
        self._company = (0, 0.0)
        """How many computed at once, and until when they count."""
        self._lock = new_re_lock()
        self._is_setting = False
        self._number = 0
        """What is set; 0 for as it was."""
        self._before: list[tuple[_Pool, int]] = []
        """Where something is set, what it was before."""

    def begin(self, one: Computation) -> None:
        """Let a computation begin, when it is its turn, with the right number of threads.

        One inside of another, as in a handler of signals, computes with what that has, which cannot go on before it.
        """
        one.thread = get_ident()
        if any(other.thread == one.thread for other in list(self.users)):
            return
        self.users[one] = None
        if not self._has_turn(one):
            self._wait(one)
        self._settle()

    def make_room(self) -> None:
        """Somebody is no user any more: call those whose turn it is, and set what the others want."""
        if len(self.users) >= self._cores:
            for one in list(self.users)[: self._cores]:
                if (called := one.called) is not None:
                    called.put(None)
        self._settle()

    def look_again(self) -> None:
        """Between two steps of a computation that `waits_for_company`: set what it wants, if nobody has come."""
        if self._clock() >= self._company[1]:
            self._settle()

    def after_fork(self) -> None:
        """In a process that was forked: those who computed are not there, and the number is as it was."""
        self._is_setting = False
        self._company = (0, 0.0)
        self.users.clear()
        self._settle()

    def _has_turn(self, one: Computation) -> bool:
        return len(self.users) <= self._cores or one not in list(self.users)[self._cores :]

    def _wait(self, one: Computation) -> None:
        called = one.called = SimpleQueue()
        while not self._has_turn(one):
            with suppress(Empty):
                called.get(timeout=_LOOK_SECONDS)
        one.called = None

    def _settle(self) -> None:
        """Set the number that is wanted, if it is another; looks again, since others come and go meanwhile."""
        while self._wanted() != self._number:
            with self._lock:
                if self._is_setting:  # by whom a handler of signals stands in; it looks again
                    return
                try:
                    self._is_setting = True
                    self._set(self._wanted())
                finally:
                    self._is_setting = False

    def _wanted(self) -> int:
        users = list(self.users)
        if not users:
            return 0
        share = self._share(self._counted(len(users)))
        limits = [user.threads for user in users if user.threads]
        if limits:
            return min(share or limits[0], *limits)
        return 1 if all(user.is_small for user in users) else share

    def _counted(self, users: int) -> int:
        """How many compute at once, with those that did so a moment ago."""
        if users == 1 and not self._company[0]:
            return 1
        now = self._clock()
        most, end = self._company
        if users > 1 and (users >= most or now >= end):
            self._company = users, now + COMPANY_SECONDS
        elif now < end:
            self.waits_for_company = users == 1
            return most
        elif users == 1:
            self._company = (0, 0.0)
        self.waits_for_company = False
        return users

    def _share(self, users: int) -> int:
        """How many threads each of so many has; 0 for all."""
        if users == 1:
            return 0
        return self._cores // 2 if users <= _FEW and 4 * users <= self._cores else 1

    def _set(self, number: int) -> None:
        if not self._number:
            self._before = [(pool, pool.number()) for pool in _pools()]
        self._number = _UNSETTLED  # for as long as it is, and where an interrupt ends it
        for pool, count in self._before:
            pool.set_number(min(number, count) if number else count)
        self._number = number


BLAS_THREADS = BlasThreads()
register_after_fork(BLAS_THREADS)


def others_spin() -> bool:
    """Whether this process has another pool whose threads spin between its loops: PyTorch's, by OpenMP."""
    return "torch" in sys.modules


class _Pool:
    """The threads of one OpenBLAS."""

    def __init__(self, library: Any) -> None:
        self.number, self.set_number = (_function(library, f"openblas_{verb}_num_threads") for verb in ("get", "set"))


def _function(library: Any, name: str) -> Callable[..., int]:
    """A function of OpenBLAS, whatever its name is in this build."""
    names = [f"{prefix}{name}{suffix}" for prefix, suffix in _AFFIXES]
    found: list[Callable[..., int]] = [getattr(library, symbol) for symbol in names if hasattr(library, symbol)]
    return found[0]


@memoize(1)
def _pools() -> list[_Pool]:
    """Those with one pool for the process; by OpenMP each thread has one, which others cannot set.

    Their own functions set the number: threadpoolctl's take a lock, and hear one thread alone.
    """
    # Imported on use: looking for the libraries of the process takes milliseconds.
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    return [_Pool(library.dynlib) for library in libraries if library.threading_layer == "pthreads"]
