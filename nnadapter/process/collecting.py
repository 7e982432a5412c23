"""Building large things without the garbage collector looking at them again and again.

What a model of many nodes is made into are millions of small objects that all stay. Python's collector visits them
each time their number has grown by a quarter, which takes up to a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_pausing = 0
_enabled = False


@contextmanager
def paused_collection() -> Iterator[None]:
    """Keep the collector of cycles from running; it goes on as before when the last one that paused it ends."""
    global _pausing, _enabled
    with _lock:
        if not _pausing:
            _enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if not _pausing and _enabled:
                gc.enable()
