"""Closing what drivers made: a `close` that raises must not cost a result, or keep the rest from being closed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Protocol

from nnadapter.errors import FAILURES, DriverWarning, describe


class Closable(Protocol):
    """What has a `close`."""

    def close(self) -> None:
        """Free it."""


def close_all(things: Iterable[Closable]) -> None:
    """Close every one of `things`. What they raise is warned of, all at once, when all of them were asked to close."""
    failures = []
    for thing in (rest := iter(things)):
        try:
            thing.close()
        except FAILURES as error:  # a driver may raise anything; this is its border
            failures.append(f"{type(thing).__name__}.close raised {describe(error)}")
        except BaseException:
            close_all(rest)
            raise
    if failures:
        warnings.warn("; ".join(failures) + "; report it to the vendor", DriverWarning, stacklevel=2)
