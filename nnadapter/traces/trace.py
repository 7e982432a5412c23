"""Trace interface: events of a session, and the trace that discards them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

SESSION = "session"
"""Lane of events outside devices."""
HOST = "host"
"""Host memory as a place of transfers."""
RUN, STEP, TRANSFER, WAIT, PLAN, COMPILE, FALLBACK, ENGINE = (
    "run",
    "step",
    "transfer",
    "wait",
    "plan",
    "compile",
    "fallback",
    "engine",
)
"""Categories of events. `engine` is for events of ONNX Runtime."""


class Event(NamedTuple):
    """Event with a duration, or instant event without an end."""

    lane: str
    thread: int
    category: str
    name: str
    start: int
    """Nanoseconds of `time.perf_counter_ns`."""
    end: int | None
    facts: Mapping[str, Any]
    """JSON values, with units in the names."""

    @property
    def last(self) -> int:
        return self.start if self.end is None else self.end


class Trace:
    """Trace that discards all events. See `Recorder`."""

    is_recording = False
    """True if events are recorded."""
    is_logging = False
    """True if plans, compilations and fallbacks are logged."""

    def timestamp(self) -> int:
        return 0

    def span(self, lane: str, category: str, name: str, **facts: Any) -> AbstractContextManager[dict[str, Any]]:
        """Return a context manager that records its block as an event, including an error.

        `facts` are JSON values with units in the names; the block may add some to the yielded dictionary.
        """
        return _NOTHING

    def add(
        self, lane: str, category: str, name: str, start: int, facts: Mapping[str, Any], end: int | None = None
    ) -> None:
        """Record an event from `start`, a `timestamp`, until `end`, by default until now."""

    def reserve_events(self, events: int) -> bool:
        """Reserve room for this many events of ONNX Runtime; return True if there is room."""
        return False

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        pass

    def transfer(self, source: str, target: str, nbytes: int, start: int, **facts: Any) -> None:
        """Record that a value moved between devices or `HOST`, from `start` until now."""

    def check(self) -> None:
        pass

    def finish(self) -> str:
        """Write the recorded events once, and return the path, if any."""
        return ""


class _Nothing:
    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NOTHING = _Nothing()
SILENT = Trace()
