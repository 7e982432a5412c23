"""What happened: one event."""

from __future__ import annotations

from collections.abc import Mapping
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
