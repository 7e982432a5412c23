"""Whether a server's device works, by what its last runs did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from nnadapter.process.forking import new_lock
from nnadapter.ray.worker import Sums

_REMEMBERED = 20
_FAILURES_IN_A_ROW = 3


class Health:
    """What runs and requests did, counted. Usable from many threads at once."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self._statuses: Counter[int] = Counter()
        self.sums = Sums()
        self.joined = 0
        """Requests that shared their run with another one."""

    def ran(self, provenance: Any, feed: Mapping[str, Any], rows: int, seconds: float) -> str:
        """Count a run that gave its results; the devices that they came from."""
        with self._lock:
            self.sums.add(provenance, feed, rows, seconds)
            self._last.append("fell back" if provenance.fell_back else "well")
        return "+".join(dict.fromkeys(step.device for step in provenance.steps))

    def failed(self) -> None:
        """Count a run that a device did not do, and nobody else."""
        with self._lock:
            self._last.append("failed")

    def answered(self, status: int) -> None:
        """Count a request."""
        with self._lock:
            self._statuses[status] += 1

    @property
    def state(self) -> str:
        """`works`, `falls back` (others do the device's work), or `fails` (its last runs gave no results)."""
        with self._lock:
            newest = list(self._last)[-_FAILURES_IN_A_ROW:]
        if len(newest) == _FAILURES_IN_A_ROW and set(newest) == {"failed"}:
            return "fails"
        return "falls back" if newest and newest[-1] == "fell back" else "works"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        with self._lock:
            sums = self.sums
            counts = {
                "requests": sum(self._statuses.values()),
                "statuses": {str(status): number for status, number in sorted(self._statuses.items())},
                "runs": sums.runs,
                "rows": sum(sums.where.values()),
                "requests_that_shared_a_run": self.joined,
                "seconds": sums.seconds,
                "rows_by_device": dict(sums.where),
                "rows_fallen_back": sums.fallen,
                "incidents": dict(sums.incidents),
            }
        return {"health": self.state, **counts}
