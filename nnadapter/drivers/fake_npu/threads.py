"""How many threads numpy's BLAS computes with.

BLAS libraries have one pool per process. One computation may have all of it. Where several are under way at once, the
threads of the pool would wait for each other, spinning on the cores that the others need: each then computes alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from nnadapter.process.cache import remembered

_computing: dict[object, int] = {}
"""Computations that are under way, and how many threads each wants at most; 0 leaves them as they are."""
_lock = Lock()
_before: list[tuple[Any, int]] = []
"""Libraries whose number of threads was changed, and what it was."""
_limit = 0
"""The number that was set last; 0 where they are as they were."""


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Compute with at most that many BLAS threads inside, or one where others compute as well; 0 sets no limit.

    The limit holds for the whole process. Where several compute with different limits, the least one holds.
    """
    user = object()
    try:
        _computing[user] = threads
        _settle()
        yield
    finally:
        _computing.pop(user, None)
        _settle()


def _settle() -> None:
    """Set what those that compute now want, if that is something else than before."""
    global _limit
    if _wanted() == _limit:
        return
    with _lock:
        wanted = _wanted()
        if wanted == _limit:
            return
        if not _before:
            _before.extend((library, library.num_threads) for library in _blas().lib_controllers)
        for library, count in _before:
            library.set_num_threads(min(wanted, count) if wanted else count)
        if not wanted:
            _before.clear()
        _limit = wanted


def _wanted() -> int:
    wants = tuple(_computing.values())
    if len(wants) > 1 and 2 * len(wants) > _CORES:
        return 1
    return min(filter(None, wants), default=0) if any(wants) else 0


_CORES = os.cpu_count() or 1


@remembered(1)
def _blas() -> Any:
    # Imported on use: looking for the libraries of the process takes milliseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
