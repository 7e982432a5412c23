"""How many threads numpy's BLAS computes with, where several computations are under way at once.

BLAS libraries have one pool of threads per process. One computation may have all of it. Where several have, they wait
for each other's threads, which spin on the processors that the others need: so each computes with one thread then. As
many compute at once as there are processors, and the others wait for their turn, in the order in which they came: more
would only hand Python's lock around, and the caches.

The number is the process's, and it changes only while no computation of ours is in the middle of an instruction. Who
comes and needs another number waits; the others see that before their next instruction, and wait as well; the last one
sets the number, and all go on. It is put back as it was when nobody computes any more. A wait that an interrupt left
unanswered is looked at again after a while.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from nnadapter.process.cache import remembered

_CORES = os.cpu_count() or 1
_LOOK_SECONDS = 0.1


class Computation:
    """One computation. `BlasThreads.users.pop(it, None)` is the first call of a `finally` around all of it, then `end`.

    Args:
        threads: how many BLAS threads it wants at most; 0 leaves them as they are.
    """

    __slots__ = ("_pool", "_turn", "computes", "threads")

    def __init__(self, threads: int, pool: BlasThreads | None = None) -> None:
        self.threads, self._pool = threads, pool or BLAS_THREADS
        self.computes = False
        """It may be in the middle of an instruction."""
        self._turn = Lock()
        self._turn.acquire()

    def begin(self) -> None:
        """Compute from now on; waits until all others that do so have the right number of threads, too."""
        if not self._pool.joined(self):
            self._wait()

    def make_room(self) -> None:
        """Between two instructions, where `BlasThreads.is_asked`: wait until the number is set."""
        self.computes = False
        self._pool.settle()
        self._wait()

    def end(self) -> None:
        """It is no user any more; others need not wait for it."""
        self._pool.settle()

    def go(self) -> None:
        """Let it go on."""
        self.computes = True
        self._turn.release()

    def _wait(self) -> None:
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            self._pool.settle()


class BlasThreads:
    """The threads of numpy's BLAS, and the computations that share them. Usable from many threads."""

    def __init__(self, cores: int = _CORES) -> None:
        self.is_asked = False
        """Computations are to wait before their next instruction."""
        self.users: dict[Computation, None] = {}
        """Those that compute, and those that wait."""
        self._cores = cores
        self._lock = Lock()
        self._number = 0
        """What is set; 0 for as it was."""
        self._before: list[tuple[Any, int]] = []
        """Libraries whose number was changed, and what it was."""

    def joined(self, one: Computation) -> bool:
        """Let a computation begin, or have it wait; whether it may begin."""
        with self._lock:
            others = list(self.users)
            self.users[one] = None
            if len(others) >= self._cores:
                return False
            if not others:
                self._set(self._wanted([one]))
            elif self.is_asked or self._wanted([*others, one]) != self._number:
                self.is_asked = True
                return False
            one.computes = True
            return True

    def settle(self) -> None:
        """Let all go on whose turn it is, once they have the right number of threads."""
        with self._lock:
            admitted = list(self.users)[: self._cores]
            waiting = [one for one in admitted if not one.computes]
            number = self._wanted(admitted)
            if len(waiting) == len(admitted):
                self._set(number)
                self.is_asked = False
            elif self.is_asked or (waiting and number != self._number):
                self.is_asked = bool(waiting)
                return
            for one in waiting:
                one.go()

    def _wanted(self, computations: list[Computation]) -> int:
        if len(computations) > 1 and 2 * len(computations) > self._cores:
            return 1
        return min((each.threads for each in computations if each.threads), default=0)

    def _set(self, number: int) -> None:
        if number == self._number:
            return
        if not self._before:
            self._before = [(library, library.num_threads) for library in _shared_pools()]
        for library, count in self._before:
            _set_threads(library, min(number, count) if number else count)
        if not number:
            self._before = []
        self._number = number


BLAS_THREADS = BlasThreads()


def _set_threads(library: Any, number: int) -> None:
    """Set the number of a library, and leave it to other threads to do so too.

    threadpoolctl hears only the first thread that sets one, and ignores all others as long as that lives; where that is
    a thread of the caller's, its number stays.
    """
    library.set_num_threads(number)
    if hasattr(library, "clear_controlling_thread"):  # from 3.7 on
        library.clear_controlling_thread()


@remembered(1)
def _shared_pools() -> list[Any]:
    """The BLAS libraries with one pool for the process; by OpenMP each thread has one, which others cannot set."""
    # Imported on use: looking for the libraries of the process takes milliseconds.
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return [library for library in libraries if getattr(library, "threading_layer", "") != "openmp"]
