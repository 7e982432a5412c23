"""Closing what drivers made: a `close` that raises must not cost a result, or keep the rest from being closed.

Memory of devices is freed in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from nnadapter.errors import FAILURES, DriverWarning, describe


class Closable(Protocol):
    """What has a `close`."""

    def close(self) -> None:
        """Free it."""


def close_all(things: Iterable[Closable]) -> None:
    """Close every one of `things`. What they raise is warned of, all at once, when all of them were asked to close."""
    failures: list[str] = []
    for thing in (iterator := iter(things)):
        try:
            failures += failures_of(thing.close, f"{type(thing).__name__}.close")
        except BaseException:
            close_all(iterator)
            raise
    warn_of_failures(failures)


def failures_of(close: Callable[[], object], label: str) -> Sequence[str]:
    """Call what closes or frees something that a driver made, and return what it raised, in words; empty if nothing.

    Args:
        close: what is called.
        label: it is called in messages.
    """
    try:
        close()
    except FAILURES as error:  # a driver may raise anything; this is its border
        return (f"{label} raised {describe(error)}",)
    return ()


def warn_of_failures(failures: Sequence[str]) -> None:
    """Warn of all that `failures_of` returned, if there is anything."""
    if failures:
        warnings.warn("; ".join(failures) + "; report it to the vendor", DriverWarning, stacklevel=3)
