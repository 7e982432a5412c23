"""What batches did, added up: each batch once, whatever Ray repeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nnadapter.ray.attempts import BatchKey

MOST_SHAPES = 256
_MOST_INCIDENTS = 256
OTHERS = "others"


class BatchRecord(NamedTuple):
    """What one batch did."""

    key: BatchKey
    machine: str
    kind: str
    rows: int
    runs: int
    seconds: float
    """Of the runs."""
    where: tuple[tuple[str, int], ...]
    """Devices that the results came from, joined by `+`, and how many rows came from them."""
    fallen: int
    """Rows of runs in which a device did not deliver, so that another one did."""
    incidents: tuple[tuple[str, int], ...]
    """What went wrong, as `device: error`, and how often."""
    shapes: tuple[tuple[str, int, int, float, float], ...]
    """Shapes of what was fed, and for each: runs, rows, seconds of all, of the slowest."""


@dataclass(slots=True)
class Totals:
    """The sums of one execution of a job."""

    rows: int = 0
    batches: int = 0
    runs: int = 0
    seconds: float = 0.0
    repeated_batches: int = 0
    repeated_rows: int = 0
    fallen: int = 0
    where: Counter[str] = field(default_factory=Counter)
    machines: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    incidents: Counter[str] = field(default_factory=Counter)
    shapes: dict[str, list[float]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Of each task of Ray's, how many of its batches were counted: they come in order, and again from the first one."""

    def add(self, record: BatchRecord) -> None:
        """Count a batch, unless it was."""
        next_ordinal = self.seen.get(record.key.task, 0)
        if record.key.ordinal < next_ordinal:
            self.repeated_batches += 1
            self.repeated_rows += record.rows
            return
        self.seen[record.key.task] = record.key.ordinal + 1
        self.rows += record.rows
        self.batches += 1
        self.runs += record.runs
        self.seconds += record.seconds
        self.fallen += record.fallen
        self.where.update(dict(record.where))
        self.machines[record.machine] += record.rows
        self.kinds[record.kind] += record.rows
        for name, count in record.incidents:
            has_room = name in self.incidents or len(self.incidents) < _MOST_INCIDENTS
            self.incidents[name if has_room else OTHERS] += count
        for shapes, *numbers in record.shapes:
            self._shape(shapes, numbers)

    def _shape(self, shapes: str, numbers: list[Any]) -> None:
        has_room = shapes in self.shapes or len(self.shapes) < MOST_SHAPES
        runs, rows, seconds, slowest = numbers
        sums = self.shapes.setdefault(shapes if has_room else OTHERS, [0, 0, 0.0, 0.0])
        sums[0] += runs
        sums[1] += rows
        sums[2] += seconds
        sums[3] = max(sums[3], slowest)
