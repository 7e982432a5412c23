"""What went wrong in a session, and what was done instead: a list of bounded length, and counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from nnadapter.options import Fallback, fallback_at
from nnadapter.process.forking import new_lock
from nnadapter.traces.trace import SILENT, Trace

_MOST_KEPT = 64
"""Incidents that a session remembers one by one: the newest."""
_MOST_CAUSES = 256
"""Causes that are counted apart, and warned of; what a driver makes up beyond that is one more."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that a device should have done and did not."""

    stage: str
    """`load`, `compile`, `run` or `accuracy`; see `Options.fallback`."""
    device: str
    """The device at fault."""
    segment: int | None
    """Position in the plan, where it got that far."""
    nodes: tuple[str, ...]
    """Names of the nodes concerned."""
    kind: str
    """Name of the error's class."""
    message: str
    """What happened, in one sentence."""
    fallback_action: str
    """What was done."""


class Incidents:
    """Those of one session, and what it does about them. Usable from many threads at once.

    Args:
        fallback: see `Options.fallback`.
        trace: of the session, which hears of them.
    """

    def __init__(self, fallback: Fallback = "warn", trace: Trace = SILENT) -> None:
        self.trace, self._fallback = trace, fallback
        self._kept: deque[Incident] = deque(maxlen=_MOST_KEPT)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._causes: set[tuple[str, str, str]] = set()
        self._lock = new_lock()

    def policy(self, stage: str) -> str:
        """See `Options.fallback_at`."""
        return fallback_at(self._fallback, stage)

    def add(self, incident: Incident) -> bool:
        """Remember an incident; whether its cause (stage, device and kind) is a new one."""
        cause, counted = (incident.stage, incident.device, incident.kind), (incident.device, incident.kind)
        with self._lock:
            self._kept.append(incident)
            has_room = counted in self._counts or len(self._counts) < _MOST_CAUSES
            self._counts[counted if has_room else (incident.device, "others")] += 1
            if cause in self._causes or len(self._causes) >= _MOST_CAUSES:
                return False
            self._causes.add(cause)
            return True

    @property
    def newest(self) -> tuple[Incident, ...]:
        """The newest, in the order in which they happened."""
        with self._lock:
            return tuple(self._kept)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many there were, of all, by device and kind."""
        with self._lock:
            return dict(self._counts)
