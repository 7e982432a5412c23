"""What XLA worked in while it compiled: the C library keeps it, for each thread that was at it, unless it is asked."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from nnadapter.process.cache import remembered


def give_back() -> None:
    """Give memory that is free back to the system, where the C library can; it takes some 10 ms."""
    trim = _trim()
    if trim is not None:
        trim(0)


@remembered(1)
def _trim() -> Callable[[int], Any] | None:
    """Glibc's `malloc_trim`; others have none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
