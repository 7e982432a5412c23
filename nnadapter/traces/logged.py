"""A trace in words: what a session does seldom, told to Python's `logging` as it happens.

Logger `nnadapter.fallback` tells at WARNING, each time, what a device failed to do; `nnadapter.compile` at INFO what
devices compile, and how long that takes; `nnadapter.plan` at DEBUG what is done before. Runs and steps are in a
`Recorder` alone: there are too many.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from nnadapter.errors import InvalidOptionError, describe, near_names
from nnadapter.process.cache import remembered
from nnadapter.traces.event import COMPILE, FALLBACK, PLAN
from nnadapter.traces.trace import Trace

VARIABLE = "NNADAPTER_LOG"
"""The environment variable that names a level, from which on lines are written to standard error."""
_LEVELS = ("debug", "info", "warning", "error")
_ROOT = logging.getLogger("nnadapter")
_LEVEL_OF_CATEGORY = {PLAN: logging.DEBUG, COMPILE: logging.INFO, FALLBACK: logging.WARNING}


def is_wanted() -> bool:
    """Whether the environment or the program that we are part of asks for lines.

    Raises:
        InvalidOptionError: the environment names no level.
    """
    level = os.environ.get(VARIABLE, "").strip().lower()
    if level:
        _write_from(level)
    return bool(level) or _ROOT.isEnabledFor(logging.INFO)


@remembered(1)
def _write_from(level: str) -> None:
    """Write lines of a level and above to standard error."""
    if level not in _LEVELS:
        near = near_names(level, _LEVELS, "; ")
        raise InvalidOptionError(f"{VARIABLE} is {level!r}, expected {', '.join(_LEVELS)}{near}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _ROOT.addHandler(handler)
    _ROOT.setLevel(level.upper())
    _ROOT.propagate = False  # else a program's own handlers write each line again


class Logged(Trace):
    """Tells plans, compilations and fallbacks."""

    is_told = True

    def now(self) -> int:
        """See `Trace.now`."""
        return time.perf_counter_ns()

    def span(self, lane: str, category: str, name: str, **facts: Any) -> _Told:
        """See `Trace.span`."""
        return _Told(lane, category, name, facts)

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        """See `Trace.mark`."""
        _tell(category, f"{lane}: {name}", facts)


class _Told:
    """A block of which is told what it took."""

    __slots__ = ("_category", "_facts", "_start", "_what")

    def __init__(self, lane: str, category: str, name: str, facts: dict[str, Any]) -> None:
        self._category, self._what, self._facts, self._start = category, f"{lane}: {name}", facts, 0.0

    def __enter__(self) -> dict[str, Any]:
        self._start = time.perf_counter()
        return self._facts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        milliseconds = (time.perf_counter() - self._start) * 1e3
        how = "" if error is None else f", failed: {describe(error)}"
        _tell(self._category, f"{self._what}: {milliseconds:.1f} ms{how}", self._facts)


def _tell(category: str, what: str, facts: Mapping[str, Any]) -> None:
    level = _LEVEL_OF_CATEGORY.get(category)
    if level is not None:
        # Names of nodes, of which there may be many, are in `what` already, as far as one wants to read them.
        known = "; ".join(f"{name}: {value}" for name, value in facts.items() if not isinstance(value, list))
        _ROOT.getChild(category).log(level, "%s%s", what, f" ({known})" if known else "")
