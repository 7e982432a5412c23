"""Actor of a job or server, which compiles once per kind of machine and counts each batch once."""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.registry import device_info
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.errors import DeviceUnavailableError, NNAdapterError, StoredFileError
from nnadapter.files.atomic_files import replace_file
from nnadapter.ir.operand import Array
from nnadapter.ray.cluster import Request, each_once, missing_devices
from nnadapter.records import dataclass, field, replace
from nnadapter.report.report import PartitionReport
from nnadapter.session.ahead_of_time import compile as compile_model
from nnadapter.store.keys import surroundings

_SHOWN_DIGITS = 12
_THREADS = "threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of machine: properties that decide how a model is compiled."""

    name: str
    """Hash of the properties."""
    devices: tuple[DeviceRequest, ...]
    """Requested devices that are available; at least the CPU."""
    missing: Mapping[str, str]
    description: Mapping[str, str]


def local_kind(requested_devices: Mapping[str, Mapping[str, Any]], *, allows_cpu: bool, threads: int) -> Kind:
    """Return the kind of this machine. Devices with an option `threads` get `threads`, unless it is 0.

    Raises:
        DeviceUnavailableError: a device is missing, and `allows_cpu` is False.
    """
    missing = missing_devices(requested_devices)
    for name, reason in () if allows_cpu else missing.items():
        raise DeviceUnavailableError(
            f"device {name!r} is not on this machine: {reason}; start machines that have it with its resource "
            "(nnadapter.ray.resources()), or allow the CPU by without_device='cpu'"
        )
    available_devices = {name: options for name, options in requested_devices.items() if name not in missing} or {
        CPU: {}
    }
    parts = {name: surroundings(name, takes_onnx=True) for name in (*available_devices, CPU)}
    devices = tuple((name, _with_threads(name, options, threads)) for name, options in available_devices.items())
    facts = [
        (name, part, facts.digest)
        for name, device_parts in parts.items()
        for part, facts in sorted(device_parts.items())
    ]
    name = sha256(repr((facts, devices)).encode()).hexdigest()[:_SHOWN_DIGITS]
    machine = parts[CPU]["machine"].words
    versions = {
        device: parts[device]["driver"].words.get("version", "") for device in available_devices if device not in HOSTS
    }
    return Kind(name=name, devices=devices, missing=missing, description={**machine, **versions})


def _with_threads(name: str, options: Mapping[str, Any], threads: int) -> dict[str, Any]:
    capability = device_info(name).capability
    asks = capability is not None and any(option.name == _THREADS for option in capability.options)
    return {_THREADS: threads, **options} if asks and threads else dict(options)


_ORDINAL = "nnadapter_batch"


class BatchKey(NamedTuple):
    """Identity of a batch, the same when Ray repeats it."""

    execution: str
    task: str
    ordinal: int
    """Index of the batch in the task; repeated tasks start from 0."""


class Attempts:
    """Source of batch keys. Call `next` in the thread that processes the batch."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def next(self) -> BatchKey:
        import ray
        from ray.data import DataContext

        execution = str(getattr(DataContext.get_current(), "dataset_logger_id", None) or "")
        task = _task_context()
        if task is not None:  # each attempt has a new context, so counting starts from 0
            task.kwargs[_ORDINAL] = ordinal = task.kwargs.get(_ORDINAL, -1) + 1
            return BatchKey(execution, str(task.task_idx), ordinal)
        name = str(ray.get_runtime_context().get_task_id())
        self._last = (name, self._last[1] + 1 if name == self._last[0] else 0)
        return BatchKey(execution, *self._last)


def _task_context() -> Any:
    try:
        from ray.data._internal.execution.interfaces import TaskContext
    except ImportError:
        return None
    return TaskContext.get_current()


MOST_SHAPES = 256
_MOST_INCIDENTS = 256
OTHER_KEY = "others"


class BatchRecord(NamedTuple):
    """Counts and times of one batch."""

    key: BatchKey
    machine: str
    kind: str
    rows: int
    runs: int
    seconds: float
    where: tuple[tuple[str, int], ...]
    """(devices joined by `+`, number of rows that they produced together)."""
    fallen: int
    """Number of rows in runs with a fallback."""
    incidents: tuple[tuple[str, int], ...]
    """`device: error` -> count."""
    shapes: tuple[tuple[str, int, int, float, float], ...]
    """Shapes, runs, rows, total seconds, slowest seconds."""


@dataclass(slots=True)
class Totals:
    """Sums over one execution of a dataset."""

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
    counted_batches: dict[str, int] = field(default_factory=dict)
    """Task -> number of counted batches. Batches of a task come in order; a repeated task starts again from 0."""

    def add(self, record: BatchRecord) -> None:
        """Add a batch to the sums; a repeated one only counts as repeated."""
        next_ordinal = self.counted_batches.get(record.key.task, 0)
        if record.key.ordinal < next_ordinal:
            self.repeated_batches += 1
            self.repeated_rows += record.rows
            return
        self.counted_batches[record.key.task] = record.key.ordinal + 1
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
            self.incidents[name if has_room else OTHER_KEY] += count
        for shapes, *numbers in record.shapes:
            self._shape(shapes, numbers)

    def _shape(self, shapes: str, numbers: list[Any]) -> None:
        has_room = shapes in self.shapes or len(self.shapes) < MOST_SHAPES
        runs, rows, seconds, slowest = numbers
        sums = self.shapes.setdefault(shapes if has_room else OTHER_KEY, [0, 0, 0.0, 0.0])
        sums[0] += runs
        sums[1] += rows
        sums[2] += seconds
        sums[3] = max(sums[3], slowest)


_FOLDER = "nnadapter"
_ENDING = ".compiled"
_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """Compiled file for one kind of machine."""

    seconds: float
    nbytes: int
    contents: Array | None = None
    """Contents of the file; None if it is in a shared folder."""
    path: str = ""
    reused_file: bool = False
    notes: tuple[str, ...] = ()
    cached: int = 0
    report: str = ""


def compile_locally(contents: Array, kind: Kind, request: Request) -> CompileResult:
    """Compile a model for all machines of this kind."""
    target = Path(request.folder, f"{file_name(kind, request)}{_ENDING}") if request.folder else None
    started = perf_counter()
    if target is not None and target.is_file():
        nbytes = target.stat().st_size
        return CompileResult(seconds=perf_counter() - started, nbytes=nbytes, path=str(target), reused_file=True)
    with tempfile.TemporaryDirectory(dir=session_folder()) as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = target or Path(folder, f"model{_ENDING}")
        report = compile_model(
            request.path or bytes(contents),
            path,
            devices=kind.devices,
            input_shapes=request.shapes or None,
            options=request.for_compiling,
            keep_model=request.options.fallback_at("run") != "forbid",
            dynamic_shapes=True if request.shapes and request.has_dynamic_inputs else None,
        )
        compiled_bytes = None if target is not None else np.frombuffer(path.read_bytes(), np.uint8)
        messages = (*(str(warning.message) for warning in caught), *_of_sizes(path, request, report))
        notes = tuple(dict.fromkeys(messages))
        hits = sum(segment.cache is not None and segment.cache.hit for segment in report.segments)
        return CompileResult(
            seconds=perf_counter() - started,
            nbytes=path.stat().st_size,
            contents=compiled_bytes,
            path="" if target is None else str(target),
            notes=notes,
            cached=hits,
            report=report.to_json(),
        )


def _of_sizes(path: Path, request: Request, report: PartitionReport) -> Iterator[str]:
    """Yield a note if dataset rows with uncompiled shapes run on the CPU."""
    shapes = [value.shape or () for value in request.signature.inputs]
    varies = any(not isinstance(size, int) for shape in shapes for size in shape[1:])
    is_open = any(plan.HasField("open") for plan in CompiledFile(path).message.plans)
    if varies and not is_open:
        sizes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
        reason = "" if report.plans is None else f": {report.plans.served_shapes_text}"
        yield f"rows of other sizes than {sizes} run on the CPU{reason}; pass their shapes by input_shapes="


def file_name(kind: Kind, request: Request) -> str:
    """Return a hash of model, kind of machine and compile options as a file name."""
    shapes = [sorted((name, tuple(shape)) for name, shape in shape_set.items()) for shape_set in request.shapes]
    key_text = repr((request.digest, kind.name, kind.devices, repr(request.for_compiling), shapes))
    return sha256(key_text.encode()).hexdigest()[:_SHOWN]


def written(contents: Array, name: str, folder: str | os.PathLike[str]) -> Path:
    """Write a compiled file into a folder of this machine, unless it exists; return its path. Raises StoredFileError.

    Sessions memory-map it, so a machine has the weights in memory once.
    """
    user_folder = Path(folder, f"{_FOLDER}-{os.getuid() if hasattr(os, 'getuid') else 'files'}")
    user_folder.mkdir(mode=0o700, exist_ok=True)
    status = user_folder.lstat()
    if user_folder.is_symlink() or (hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022)):
        raise StoredFileError(
            f"folder {str(user_folder)!r} is not private to this user, but programs in it are executed; remove it",
            file=str(user_folder),
        )
    path = user_folder / f"{name}{_ENDING}"
    if not (path.is_file() and path.stat().st_size == contents.nbytes):
        replace_file(path, lambda file: file.write(contents.data))
    return path


def session_folder() -> Path:
    """Return this machine's temporary folder of the Ray session."""
    import ray

    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir(), context.get_session_name())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sizes_in(file: Any, inputs: Sequence[str]) -> int | None:
    """Return the largest number of rows for which a file is compiled; None if the plans are dynamic."""
    plans = list(file.message.plans)
    if any(plan.HasField("open") for plan in plans):
        return None
    firsts = {file.shapes(plan)[name][0] for plan in plans for name in inputs if file.shapes(plan)[name]}
    return max(firsts, default=None)


_MOST_TRIES = 3
_MOST_EXECUTIONS = 16


class SessionRecord(NamedTuple):
    """Session of an actor."""

    actor: str
    machine: str
    address: str
    kind: str
    devices: tuple[str, ...]
    seconds: float


class JobSnapshot(NamedTuple):
    """Copy of a job's state."""

    totals: Totals | None
    executions: int
    kinds: Mapping[str, Kind]
    compile_results: Mapping[str, CompileResult]
    compiles: Mapping[str, int]
    sessions: Sequence[SessionRecord]


class Job:
    """Ray actor of a job. Its methods run in one event loop, without locks."""

    def __init__(self, contents: Any, request: Request) -> None:
        self._contents, self._request = contents[0], request
        self._tasks: dict[str, asyncio.Task[tuple[Any, CompileResult]]] = {}
        self._made: dict[str, CompileResult] = {}
        self._kinds: dict[str, Kind] = {}
        self._compiles: dict[str, int] = {}
        self._sessions: dict[str, SessionRecord] = {}
        self._executions: dict[str, Totals] = {}
        self._ended = 0

    async def compiled(self, kind: Kind, node: str, shapes: Any = None) -> tuple[Any, str]:
        """Return the compiled file for a kind, as Ray reference or path; the first call compiles on `node`."""
        self._kinds.setdefault(kind.name, kind)
        if self._request.is_compiled:
            return self._contents, ""
        for remaining_tries in reversed(range(_MOST_TRIES)):
            task = self._tasks.get(kind.name)
            if task is None:
                task = self._tasks[kind.name] = asyncio.ensure_future(self._compile(kind, node, shapes))
            try:
                reference, compile_result = await asyncio.shield(task)
            except NNAdapterError:
                raise
            except Exception:
                if self._tasks.get(kind.name) is task:  # its machine died
                    del self._tasks[kind.name]
                if not remaining_tries:
                    raise
            else:
                return reference, compile_result.path
        raise AssertionError("unreachable code, since the last try returns or raises")

    async def _compile(self, kind: Kind, node: str, shapes: Any) -> tuple[Any, CompileResult]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_affinity = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        run = ray.remote(compile_locally).options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity)
        request = self._request if shapes is None else replace(self._request, shapes=each_once(shapes))
        compile_result: CompileResult = await run.remote(self._contents, kind, request)
        # This actor owns the bytes, so they survive the machine that compiled.
        reference = None if compile_result.contents is None else ray.put(compile_result.contents)
        self._compiles[kind.name] = self._compiles.get(kind.name, 0) + (not compile_result.reused_file)
        self._made[kind.name] = replace(compile_result, contents=None)
        return reference, compile_result

    async def began(self, record: SessionRecord) -> None:
        self._sessions[record.actor] = record

    async def add(self, record: BatchRecord) -> None:
        totals = self._executions.get(record.key.execution)
        if totals is None:
            totals = self._executions[record.key.execution] = Totals()
            if len(self._executions) > _MOST_EXECUTIONS:
                del self._executions[next(iter(self._executions))]
                self._ended += 1
        totals.add(record)

    async def snapshot(self) -> JobSnapshot:
        """Return the state without counted tasks, which can be millions."""
        newest = next(reversed(self._executions.values()), None)
        execution = newest and replace(newest, counted_batches={})
        return JobSnapshot(
            execution, len(self._executions) + self._ended, self._kinds, self._made, self._compiles,
            tuple(self._sessions.values()),
        )  # fmt: skip


class Compiler(Job):
    """Job for Ray Serve: replicas started later reuse compiled files."""

    def __init__(self, contents: bytes, request: Request) -> None:
        import ray

        super().__init__([ray.put(np.frombuffer(contents, np.uint8))], request)
