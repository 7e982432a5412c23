"""Sessions in Ray actors, and the worker that Ray Data calls for each batch."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

import nnadapter.ray.job as job
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.control import ENTRY
from nnadapter.errors import CompiledModelError, NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import new_lock
from nnadapter.ray.cluster import Request
from nnadapter.ray.rows import axis_of, batches_of, check_names, checked_columns, no_rows, row_shapes, run_rows
from nnadapter.records import dataclass, field
from nnadapter.session.session import InferenceSession


def session_options(threads: int) -> Any:
    """Return session options for the CPU, or None if `threads` is 0."""
    if not threads:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


def run_options(seconds: float | None) -> Any:
    """Return run options with a time limit, or None without one."""
    if seconds is None:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(ENTRY, repr(max(seconds, 1e-6)))
    return options


_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSession:
    """Session in a Ray actor."""

    session: InferenceSession
    kind: job.Kind
    static_rows: int | None
    """Rows per run of a compiled file with static shapes; None if it is dynamic."""
    machine: str
    """Id of the machine in Ray."""
    record: job.SessionRecord


def open_actor_session(job_actor: Any, request: Request, shapes: Any = None) -> ActorSession:
    """Create the session of an actor; `shapes` apply if the request has none."""
    import ray

    kind, node = kind_of(request)
    reference, path = called(job_actor.compiled.remote(kind, node, shapes))
    opened = open_file(path or local_file(ray.get(reference), kind, request), kind, request)
    ray.get(job_actor.began.remote(opened.record))
    return opened


def kind_of(request: Request) -> tuple[job.Kind, str]:
    """Return the kind of this machine, and its node id. Raises DeviceUnavailableError."""
    import ray

    kind = job.local_kind(request.device_requests, allows_cpu=request.allows_cpu, threads=request.threads)
    return kind, ray.get_runtime_context().get_node_id()


def local_file(contents: Any, kind: job.Kind, request: Request) -> str:
    """Write a compiled file unless this machine has it; return its path. Raises CompiledModelError."""
    name = request.digest[:_SHOWN] if request.is_compiled else job.file_name(kind, request)
    try:
        return str(job.written(np.asarray(contents), name, job.session_folder()))
    except OSError as error:
        raise CompiledModelError(
            f"the compiled file cannot be written on this machine: {error.strerror or error}; pass a shared "
            "folder by folder=",
            file=name,
        ) from error


def open_file(path: str, kind: job.Kind, request: Request) -> ActorSession:
    """Create a session from a compiled file. Raises as `InferenceSession`."""
    import ray

    context, started = ray.get_runtime_context(), perf_counter()
    node = context.get_node_id()
    compiled_rows = job.sizes_in(CompiledFile(path), [value.name for value in request.signature.inputs])
    session = InferenceSession(path, sess_options=session_options(request.threads), options=request.for_running)
    record = job.SessionRecord(
        actor=str(context.get_actor_id()),
        machine=node,
        address=socket.gethostname(),
        kind=kind.name,
        devices=session.devices,
        seconds=perf_counter() - started,
    )
    return ActorSession(session=session, kind=kind, static_rows=compiled_rows, machine=node, record=record)


def called(reference: Any) -> Any:
    """Return the result of an actor call; raise errors without Ray's wrapper."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, NNAdapterError):
            raise cause from None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Columns that a job reads and writes."""

    columns: Mapping[str, str]
    outputs: tuple[str, ...]
    passthrough_columns: tuple[str, ...]
    batch_size: int
    """Rows per run if the model takes any number of rows."""


class Worker:
    """Callable for Ray Data: one session that runs batches. Thread-safe."""

    def __init__(self, job_actor: Any, request: Request, mapped: Mapped) -> None:
        self._job, self._mapped = job_actor, mapped
        self._signature = request.signature
        self._attempts, self._request = job.Attempts(), request
        self._opening, self._turn = new_lock(), new_lock()
        self._opened: ActorSession | NNAdapterError | None = None if request.needs_shapes else self._open(None)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        import ray

        if isinstance(self._opened, NNAdapterError):
            raise self._opened
        key, mapped = self._attempts.next(), self._mapped
        check_names(mapped.columns, mapped.passthrough_columns, batch)
        arrays = checked_columns(self._signature, mapped.columns, batch)
        count = len(next(iter(arrays.values()))) if arrays else 0
        if not count:
            return {
                **{name: batch[name] for name in mapped.passthrough_columns},
                **no_rows(self._signature, mapped.outputs),
            }
        is_batch = batches_of(self._signature, mapped.columns, arrays)
        opened = self._open_for(arrays, is_batch)
        axis = axis_of(self._signature, mapped.outputs, is_batch, opened.static_rows, mapped.batch_size)
        sums = Sums()
        # While one task computes, another one's rows are counted and replaced. If tasks took turns at each run, both
        # would finish at once, and nothing would compute meanwhile.
        with self._turn:
            run = partial(self._run, opened, sums)
            output_arrays = run_rows(axis, arrays, mapped.outputs, count, run)
        acknowledgment = self._job.add.remote(sums.record(key, opened, count))
        result = {**{name: batch[name] for name in mapped.passthrough_columns}, **output_arrays}
        # Count before returning rows: if this machine dies in between, no uncounted rows are used.
        ray.get(acknowledgment)
        return result

    def _open(self, shapes: Any) -> ActorSession | NNAdapterError:
        """Return the session or its error, because Ray does not report errors of starting actors."""
        try:
            return open_actor_session(self._job, self._request, shapes)
        except NNAdapterError as error:
            return error

    def _open_for(self, arrays: Mapping[str, Array], is_batch: Mapping[str, bool]) -> ActorSession:
        with self._opening:
            if self._opened is None:
                self._opened = self._open([self._shapes(arrays, is_batch, choose) for choose in (min, max)])
        if isinstance(self._opened, NNAdapterError):
            raise self._opened
        return self._opened

    def _shapes(self, arrays: Mapping[str, Array], is_batch: Mapping[str, bool], choose: Any) -> dict[str, Any]:
        chosen = {name: choose(row_shapes(array), key=prod) for name, array in arrays.items()}
        rows = 1 if choose is min else self._mapped.batch_size  # a last batch may be as short
        return {name: (rows, *shape) if is_batch[name] else shape for name, shape in chosen.items()}

    def _run(self, opened: ActorSession, sums: Sums, feed: Mapping[str, Array], rows: int) -> Sequence[Array]:
        session = opened.session
        started = perf_counter()
        results = session.run(self._mapped.outputs, feed)
        seconds = perf_counter() - started
        sums.add(session.provenance, feed, rows, seconds)
        return results


Devices = tuple[str, ...]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(slots=True)
class Sums:
    """Sums over runs of a session; `record` returns them as a BatchRecord."""

    runs: int = 0
    seconds: float = 0.0
    fallen: int = 0
    rows: dict[Devices, int] = field(default_factory=dict)
    incidents: Counter[str] = field(default_factory=Counter)
    shapes: dict[Shapes, tuple[int, int, float, float]] = field(default_factory=dict)
    """Input shapes -> (runs, rows, total seconds, slowest seconds)."""

    def add(self, provenance: Any, feed: Mapping[str, Array], rows: int, seconds: float) -> None:
        self.runs += 1
        self.seconds += seconds
        devices = tuple([step.device for step in provenance.steps])
        self.rows[devices] = self.rows.get(devices, 0) + rows
        if provenance.fell_back:
            self.fallen += rows
        for incident in provenance.incidents:
            self.incidents[f"{incident.device}: {incident.kind}"] += 1
        shapes = tuple([(name, array.shape) for name, array in feed.items()])
        if shapes not in self.shapes and len(self.shapes) >= job.MOST_SHAPES:
            shapes = ()
        runs, previous_rows, total, slowest = self.shapes.get(shapes, (0, 0, 0.0, 0.0))
        self.shapes[shapes] = runs + 1, previous_rows + rows, total + seconds, max(slowest, seconds)

    @property
    def where(self) -> Counter[str]:
        rows_by_device: Counter[str] = Counter()
        for devices, rows in self.rows.items():
            rows_by_device["+".join(dict.fromkeys(devices))] += rows
        return rows_by_device

    def record(self, key: job.BatchKey, opened: ActorSession, rows: int) -> job.BatchRecord:
        return job.BatchRecord(
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
    return ", ".join(f"{name}{list(shape)}" for name, shape in shapes) or job.OTHER_KEY
