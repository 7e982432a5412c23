"""Number of threads of numpy's BLAS while programs with the option `threads` run.

The number belongs to the process. The lowest limit of the running computations holds, and the number is restored after
the last of them. OpenBLAS reads the number once, at the start of a product, so it may change at any time.

An interrupt or a signal handler may come between any two steps. The running computations are noted in one step each,
and the number follows from them: `settle` repeats until both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from nnadapter.process.resources import memoize, new_re_lock, register_after_fork

_UNSETTLED = -1
_AFFIXES = tuple(product(("", "scipy_"), ("", "64_", "_64")))
"""Affixes of function names in builds of OpenBLAS."""


class BlasThreads:
    """Thread limits of the running computations; safe to use from many threads and in signal handlers."""

    def __init__(self) -> None:
        self.limits: dict[object, int] = {}
        """The limit of each running computation."""
        self._lock = new_re_lock()
        self._is_setting = False
        self._number = 0
        """The number that is set; 0 for none."""
        self._before: list[tuple[_Pool, int]] = []
        """The number of each pool before one was set."""

    def settle(self) -> None:
        """Set the number that the running computations ask for."""
        while self._lowest() != self._number:
            with self._lock:
                if self._is_setting:  # a signal handler interrupted it; it repeats afterwards
                    return
                try:
                    self._is_setting = True
                    self._set(self._lowest())
                finally:
                    self._is_setting = False

    def after_fork(self) -> None:
        """Restore the number in a forked process, which has none of the computations."""
        self._is_setting = False
        self.limits.clear()
        self.settle()

    def _lowest(self) -> int:
        return min(list(self.limits.values()), default=0)

    def _set(self, number: int) -> None:
        if not self._number:
            self._before = [(pool, pool.number()) for pool in _pools()]
        self._number = _UNSETTLED  # until it is set, also after an interrupt
        for pool, count in self._before:
            pool.set_number(min(number, count) if number else count)
        self._number = number


BLAS_THREADS = BlasThreads()
register_after_fork(BLAS_THREADS)


def run_limited(steps: Iterable[Callable[[], object]], limit: int) -> None:
    """Run steps with at most `limit` threads of BLAS; 0 for no limit."""
    if not limit:
        for step in steps:
            step()
        return
    computation, threads = object(), BLAS_THREADS
    try:
        threads.limits[computation] = limit
        threads.settle()
        for step in steps:
            step()
    finally:
        try:
            threads.limits.pop(computation, None)
            threads.settle()
        except BaseException:  # an interrupt
            threads.settle()
            raise


class _Pool:
    """The threads of one OpenBLAS."""

    def __init__(self, library: Any) -> None:
        self.number, self.set_number = (_function(library, f"openblas_{verb}_num_threads") for verb in ("get", "set"))


def _function(library: Any, name: str) -> Callable[..., int]:
    names = [f"{prefix}{name}{suffix}" for prefix, suffix in _AFFIXES]
    found: list[Callable[..., int]] = [getattr(library, symbol) for symbol in names if hasattr(library, symbol)]
    return found[0]


@memoize(1)
def _pools() -> list[_Pool]:
    """Return the libraries with one pool per process; OpenMP has one per thread, which others cannot set."""
    from threadpoolctl import ThreadpoolController  # looking for libraries takes milliseconds

    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    return [_Pool(library.dynlib) for library in libraries if library.threading_layer == "pthreads"]
