"""Trace interface: events of a session, and the trace that discards them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

SESSION = "session"
"""Lane of events outside devices."""
HOST = "host"
"""Host memory as a place of transfers; not a lane."""
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
"""Categories. `engine` is for events of an inner engine such as ONNX Runtime."""


class Event(NamedTuple):
    """Event with a duration, or an instant event if it has no end."""

    lane: str
    """Device name, or `SESSION`."""
    thread: int
    """Thread id of the operating system."""
    category: str
    name: str
    start: int
    """Nanoseconds of `time.perf_counter_ns`."""
    end: int | None
    facts: Mapping[str, Any]
    """Further facts as JSON values, with units in the names."""

    @property
    def last(self) -> int:
        """End, or the start of an instant event."""
        return self.start if self.end is None else self.end


class Trace:
    """Trace that discards all events. See `Recorder`."""

    is_recording = False
    """True if events are recorded. Frequent callers read it once and skip tracing if it is False."""
    is_logging = False
    """True if rare events (plans, compilations, fallbacks) are logged."""

    def timestamp(self) -> int:
        """Return the time of the trace's clock in nanoseconds."""
        return 0

    def span(self, lane: str, category: str, name: str, **facts: Any) -> AbstractContextManager[dict[str, Any]]:
        """Return a context manager that records its block as an event, including an error.

        The block may add facts to the dictionary that it receives.

        Args:
            lane: device name, or `SESSION`.
            category: one of the constants above.
            name: title for viewers.
            **facts: further facts as JSON values, with units in the names.
        """
        return _NOTHING

    def add(
        self, lane: str, category: str, name: str, start: int, facts: Mapping[str, Any], end: int | None = None
    ) -> None:
        """Record an event from `start`, by `timestamp`, to `end` or now."""

    def reserve_events(self, events: int) -> bool:
        """Return True if there is room for this many events of an inner engine; count them as recorded or lost."""
        return False

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        """Record an instant event now."""

    def transfer(self, source: str, target: str, nbytes: int, start: int, **facts: Any) -> None:
        """Record the transfer of a value from `start` until now.

        It is on the lane of the target device, or of the source device if the target is host memory.

        Args:
            source: device name, or `HOST`.
            target: device name, or `HOST`.
            nbytes: bytes of the value.
            start: start, by `timestamp`.
            **facts: further facts, such as the value's name.
        """

    def check(self) -> None:
        """Raise InvalidOptionError if the trace cannot be written; otherwise it will be written by `finish`."""

    def finish(self) -> str:
        """Write the recorded events, once, and return the path; empty if nothing is written."""
        return ""


class _Nothing:
    """Context manager that records nothing."""

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NOTHING = _Nothing()
SILENT = Trace()
"""Trace of a session without one."""
