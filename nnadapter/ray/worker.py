"""What Ray Data calls with each batch: one session per actor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from time import perf_counter
from typing import Any

from nnadapter.errors import NNAdapterError
from nnadapter.process.forking import new_lock
from nnadapter.ray.attempts import Attempts, BatchKey
from nnadapter.ray.columns import check_names
from nnadapter.ray.opened import Opened, open_actor_session
from nnadapter.ray.request import Request
from nnadapter.ray.rows import Array, axis_of, batches_of, checked_columns, no_rows, row_shapes, run_rows
from nnadapter.ray.totals import MOST_SHAPES, OTHERS, BatchRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Columns in, columns out."""

    columns: Mapping[str, str]
    """Input -> column."""
    outputs: tuple[str, ...]
    kept: tuple[str, ...]
    """Columns that come out as they went in."""
    batch_size: int
    """Rows of a run, where the model leaves it open."""


class Worker:
    """One session, fed with batches. Usable from many threads at once."""

    def __init__(self, job: Any, request: Request, mapped: Mapped) -> None:
        self._job, self._mapped = job, mapped
        self._signature = request.signature
        self._attempts, self._request = Attempts(), request
        self._opening, self._turn = new_lock(), new_lock()
        self._opened: Opened | NNAdapterError | None = None if request.needs_shapes else self._open(None)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """Run a batch; its rows come back in their order."""
        import ray

        if isinstance(self._opened, NNAdapterError):
            raise self._opened
        key, mapped = self._attempts.next(), self._mapped
        check_names(mapped.columns, mapped.kept, batch)
        arrays = checked_columns(self._signature, mapped.columns, batch)
        count = len(next(iter(arrays.values()))) if arrays else 0
        if not count:
            return {**{name: batch[name] for name in mapped.kept}, **no_rows(self._signature, mapped.outputs)}
        is_batch = batches_of(self._signature, mapped.columns, arrays)
        opened = self._open_for(arrays, is_batch)
        axis = axis_of(self._signature, mapped.outputs, is_batch, opened.fixed, mapped.batch_size)
        sums = Sums()
        # One task computes, while the other one's rows are counted, handed on and followed by new ones: if they took
        # turns at each run, both would end at once, and nobody would compute meanwhile.
        with self._turn:
            run = partial(self._run, opened, sums)
            output_arrays = run_rows(axis, arrays, mapped.outputs, count, run)
        acknowledgment = self._job.add.remote(sums.record(key, opened, count))
        result = {**{name: batch[name] for name in mapped.kept}, **output_arrays}
        # Before the rows are handed on: else a machine that goes now would have given rows that nobody counted.
        ray.get(acknowledgment)
        return result

    def _open(self, shapes: Any) -> Opened | NNAdapterError:
        """The session, or why there is none: an actor that dies says only that it died; the first batch says why."""
        try:
            return open_actor_session(self._job, self._request, shapes)
        except NNAdapterError as error:
            return error

    def _open_for(self, arrays: Mapping[str, Array], is_batch: Mapping[str, bool]) -> Opened:
        """The session, compiled for the first rows where nothing else says what it is compiled for."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open([self._shapes(arrays, is_batch, choose) for choose in (min, max)])
        if isinstance(self._opened, NNAdapterError):
            raise self._opened
        return self._opened

    def _shapes(self, arrays: Mapping[str, Array], is_batch: Mapping[str, bool], choose: Any) -> dict[str, Any]:
        """The shapes of a feed of the smallest or the largest rows of a batch."""
        chosen = {name: choose(row_shapes(array), key=prod) for name, array in arrays.items()}
        rows = 1 if choose is min else self._mapped.batch_size  # a last batch may be as short
        return {name: (rows, *shape) if is_batch[name] else shape for name, shape in chosen.items()}

    def _run(self, opened: Opened, sums: Sums, feed: Mapping[str, Array], rows: int) -> Sequence[Array]:
        session = opened.session
        started = perf_counter()
        results = session.run(self._mapped.outputs, feed)
        seconds = perf_counter() - started
        sums.add(session.provenance, feed, rows, seconds)
        return results


Devices = tuple[str, ...]
"""Of the steps of a run."""
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Of what was fed, by input."""


@dataclass(slots=True)
class Sums:
    """What runs did, noted of each as cheaply as it goes; it is put into words when somebody asks."""

    runs: int = 0
    seconds: float = 0.0
    fallen: int = 0
    rows: dict[Devices, int] = field(default_factory=dict)
    incidents: Counter[str] = field(default_factory=Counter)
    shapes: dict[Shapes, tuple[int, int, float, float]] = field(default_factory=dict)
    """Runs, rows, seconds of all, of the slowest."""

    def add(self, provenance: Any, feed: Mapping[str, Array], rows: int, seconds: float) -> None:
        """Count a run."""
        self.runs += 1
        self.seconds += seconds
        devices = tuple([step.device for step in provenance.steps])
        self.rows[devices] = self.rows.get(devices, 0) + rows
        if provenance.fell_back:
            self.fallen += rows
        for incident in provenance.incidents:
            self.incidents[f"{incident.device}: {incident.kind}"] += 1
        shapes = tuple([(name, array.shape) for name, array in feed.items()])
        if shapes not in self.shapes and len(self.shapes) >= MOST_SHAPES:
            shapes = ()
        runs, previous_rows, total, slowest = self.shapes.get(shapes, (0, 0, 0.0, 0.0))
        self.shapes[shapes] = runs + 1, previous_rows + rows, total + seconds, max(slowest, seconds)

    @property
    def where(self) -> Counter[str]:
        """Devices that the results came from, joined by `+`, and how many rows came from them."""
        rows_by_device: Counter[str] = Counter()
        for devices, rows in self.rows.items():
            rows_by_device["+".join(dict.fromkeys(devices))] += rows
        return rows_by_device

    def record(self, key: BatchKey, opened: Opened, rows: int) -> BatchRecord:
        """The whole, as it travels."""
        return BatchRecord(
            key=key,
            machine=opened.machine,
            kind=opened.kind.name,
            rows=rows,
            runs=self.runs,
            seconds=self.seconds,
            where=tuple(self.where.items()),
            fallen=self.fallen,
            incidents=tuple(self.incidents.items()),
            shapes=tuple((_words(shapes), *numbers) for shapes, numbers in self.shapes.items()),
        )


def _words(shapes: Shapes) -> str:
    return ", ".join(f"{name}{list(shape)}" for name, shape in shapes) or OTHERS
