"""Pools of threads that sessions of ONNX Runtime have for themselves: so many at once in the process.

What is compiled to be timed beside others has as many as it would have without them: it is to take as long as it does
when it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nnadapter.process.processors import usable

_MOST_THREADS = 256
"""In the pools of the process; each has as many as there are processors."""
_FEWEST_POOLS = 8
"""Pools that there may be, however many threads these have."""
_uncounted: ContextVar[int] = ContextVar("uncounted", default=0)
"""How many do not count for what is compiled now."""


class _Pools:
    """What permits refer to."""


_POOLS = _Pools()


class PoolPermit(weakref.ref[_Pools]):
    """Leave to have a pool of threads, for as long as it lives; a session without one runs in the caller's thread.

    Python counts the references to an object: the living ones. So nothing is given back, and no interrupt between two
    steps loses a permit; and where a session is dropped and collected, no finalizer waits for a lock.
    """


def pool_permit() -> PoolPermit | None:
    """A permit, unless there are as many as there may be."""
    permit = PoolPermit(_POOLS)
    return permit if pools_held() <= most_pools() + _uncounted.get() else None


def most_pools() -> int:
    """How many permits there may be."""
    return max(_FEWEST_POOLS, _MOST_THREADS // usable())


def pools_held() -> int:
    """How many permits there are."""
    return weakref.getweakrefcount(_POOLS)


@contextmanager
def not_counting(pools: int) -> Iterator[None]:
    """Have what is compiled in the block get permits as if so many of those that there are were none.

    Args:
        pools: of programs that are timed beside it, and will not stay with it.
    """
    token = _uncounted.set(max(pools, 0))  # some may have gone since they were counted
    try:
        yield
    finally:
        _uncounted.reset(token)
