"""What a cache did for a program, and whom it tells where something is wrong."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass

from nnadapter.errors import CacheWarning

_told: set[str] = set()
"""What this process was warned of."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cache did for a program."""

    is_hit: bool
    """The program was kept, and is used."""
    miss_reason: str = ""
    """Why it was compiled, which part of the key differed, and why it is not kept, if it is not; empty for a hit."""


def warn_once(message: str) -> None:
    """Warn of what is wrong with a cache, once in a process for each message.

    Where a person has made warnings errors, it is none: it would come out of a compilation, as if that had failed.
    """
    if message not in _told:
        _told.add(message)
        with suppress(CacheWarning):
            warnings.warn(message, CacheWarning, stacklevel=2)


def warn_unwritten(why: str) -> None:
    """Warn that nothing is written into a cache, and why."""
    warn_once(
        f"the cache is not written: {why}; free some room, or give another folder as cache_dir or NNADAPTER_CACHE_DIR"
    )
