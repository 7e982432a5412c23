"""Trace interface: events of a session, and the trace that discards them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple

SESSION = "session"
"""The lane of what no device does."""
HOST = "host"
"""In transfers, the place of what lies in the host's memory: no lane."""
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
"""Categories. `engine` is what an engine below says of itself, such as ONNX Runtime."""


class Event(NamedTuple):
    """Something that took time, or, if it has no end, that came to pass."""

    lane: str
    """The name of a device, or `SESSION`."""
    thread: int
    """The thread that it happened in, as the operating system numbers it."""
    category: str
    name: str
    start: int
    """Nanoseconds, by `time.perf_counter_ns`."""
    end: int | None
    facts: Mapping[str, Any]
    """What else is known of it, as JSON knows it: units in the names."""

    @property
    def last(self) -> int:
        """When it was over."""
        return self.start if self.end is None else self.end


class Trace:
    """Takes events and keeps none: the trace of a session that has none. See `Recorder`."""

    is_recording = False
    """Events are kept. What runs often asks for this once, beforehand, and is done without a trace where it is not."""
    is_logging = False
    """Somebody reads what is rare: plans, compilations, fallbacks."""

    def timestamp(self) -> int:
        """The time on the trace's clock, in nanoseconds."""
        return 0

    def span(self, lane: str, category: str, name: str, **facts: Any) -> AbstractContextManager[dict[str, Any]]:
        """Return a block that is an event, with its facts, to which the block may add; an error is one of them.

        Args:
            lane: the name of a device, or `SESSION`.
            category: one of those of `trace.py`.
            name: what viewers show.
            **facts: what else is known, as JSON knows it, units in the names.
        """
        return _NOTHING

    def add(
        self, lane: str, category: str, name: str, start: int, facts: Mapping[str, Any], end: int | None = None
    ) -> None:
        """Take an event that began at `start`, by `timestamp`, and ended at `end`, or ends now."""

    def reserve_events(self, events: int) -> bool:
        """Whether so many events of an engine below are kept, or may be kept elsewhere; they count as kept, or lost."""
        return False

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        """Take what came to pass now."""

    def transfer(self, source: str, target: str, nbytes: int, start: int, **facts: Any) -> None:
        """Take that a value was brought to another place, from `start` until now.

        It is on the lane of the device there or, if that is the host's memory, of the device that it came from.

        Args:
            source: the name of a device, or `HOST`.
            target: the name of a device, or `HOST`.
            nbytes: of the value.
            start: by `timestamp`.
            **facts: such as the value's name.
        """

    def check(self) -> None:
        """Say that it will be written; raise InvalidOptionError where it cannot be."""

    def finish(self) -> str:
        """Write what is kept, if that was not done; its path, or an empty string."""
        return ""


class _Nothing:
    """A block that is no event."""

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NOTHING = _Nothing()
SILENT = Trace()
"""The trace of a session that has none."""
