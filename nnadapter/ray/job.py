"""Actor of a job or server: one compiled file per kind of machine, and totals that count each batch once."""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from nnadapter.ray.cluster import Request, missing_devices
from nnadapter.report.report import PartitionReport
from nnadapter.session.ahead_of_time import compile as compile_model
from nnadapter.store.keys import surroundings

_SHOWN_DIGITS = 12
_THREADS = "threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What decides on a machine what a model becomes there."""

    name: str
    """Digits that are the same where all of it is."""
    devices: tuple[DeviceRequest, ...]
    """That are there, of those that were asked for; the CPU at least."""
    missing: Mapping[str, str]
    """The others, with the reason of each."""
    description: Mapping[str, str]
    """For people: processor, versions."""


def local_kind(requested_devices: Mapping[str, Mapping[str, Any]], *, allows_cpu: bool, threads: int) -> Kind:
    """Return the kind of this machine.

    Args:
        requested_devices: devices with their options, in order of preference.
        allows_cpu: a machine that lacks a device does without.
        threads: for devices that have an option of this name, unless theirs was given.

    Raises:
        DeviceUnavailableError: a device is not here, and the CPU is not allowed.
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
    """The options of a device; as many threads as the actor has processors, where it asks how many."""
    capability = device_info(name).capability
    asks = capability is not None and any(option.name == _THREADS for option in capability.options)
    return {_THREADS: threads, **options} if asks and threads else dict(options)


_ORDINAL = "nnadapter_batch"


class BatchKey(NamedTuple):
    """What tells a batch from all others of a job; a batch that is repeated has the key of before."""

    execution: str
    """A dataset that is consumed twice is executed twice."""
    task: str
    """Ray's: it hands a worker some blocks."""
    ordinal: int
    """Of the batch in that task: tasks are repeated from their beginning."""


class Attempts:
    """Gives the batches of one worker their keys; called by the thread that has the batch."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def next(self) -> BatchKey:
        """The key of the batch that comes now."""
        import ray
        from ray.data import DataContext

        execution = str(getattr(DataContext.get_current(), "dataset_logger_id", None) or "")
        task = _task_context()
        if task is not None:  # a new one for each attempt, so that what is noted in it ends with that
            task.kwargs[_ORDINAL] = ordinal = task.kwargs.get(_ORDINAL, -1) + 1
            return BatchKey(execution, str(task.task_idx), ordinal)
        name = str(ray.get_runtime_context().get_task_id())
        self._last = (name, self._last[1] + 1 if name == self._last[0] else 0)
        return BatchKey(execution, *self._last)


def _task_context() -> Any:
    """What Ray Data says of the attempt; None where this Ray has it elsewhere."""
    try:
        from ray.data._internal.execution.interfaces import TaskContext
    except ImportError:
        return None
    return TaskContext.get_current()


MOST_SHAPES = 256
_MOST_INCIDENTS = 256
OTHER_KEY = "others"


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
    counted_batches: dict[str, int] = field(default_factory=dict)
    """Of each task of Ray's, how many of its batches were counted: they come in order, and again from the first one."""

    def add(self, record: BatchRecord) -> None:
        """Count a batch, unless it was."""
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
    """What compiling for a kind came to."""

    contents: np.ndarray[Any, Any] | None
    """Bytes of the file; None where it lies in a folder that all machines see."""
    path: str
    seconds: float
    nbytes: int
    reused_file: bool
    """In that folder, from a job before."""
    notes: tuple[str, ...]
    """What was warned of."""
    cached: int
    """Segments whose programs were found in a cache."""
    report: str
    """The report of the plan, as JSON."""


def compile_locally(contents: np.ndarray[Any, Any], kind: Kind, request: Request) -> CompileResult:
    """Compile a model on this machine, for all machines of its kind."""
    target = Path(request.folder, f"{file_name(kind, request)}{_ENDING}") if request.folder else None
    started = perf_counter()
    if target is not None and target.is_file():
        return _compile_result(target, None, started, (), "", was_there=True)
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
            dynamic_shapes=True if request.shapes and _leaves_open(request) else None,
        )
        compiled_bytes = None if target is not None else np.frombuffer(path.read_bytes(), np.uint8)
        messages = (*(str(warning.message) for warning in caught), *_of_sizes(path, request, report))
        notes = tuple(dict.fromkeys(messages))
        hits = sum(segment.cache is not None and segment.cache.hit for segment in report.segments)
        return _compile_result(path, compiled_bytes, started, notes, report.to_json(), was_there=False, cached=hits)


def _of_sizes(path: Path, request: Request, report: PartitionReport) -> Iterator[str]:
    """What is to be known where the model takes sizes that the file has no plan for: the CPU does."""
    shapes = [value.shape or () for value in request.signature.inputs]
    varies = any(not isinstance(size, int) for shape in shapes for size in shape[1:])
    is_open = any(plan.HasField("open") for plan in CompiledFile(path).message.plans)
    if varies and not is_open:
        sizes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
        reason = "" if report.plans is None else f": {report.plans.served_shapes_text}"
        yield f"rows of other sizes than {sizes} run on the CPU{reason}; say which come by input_shapes="


def _compile_result(
    path: Path, contents: Any, started: float, notes: tuple[str, ...], report: str, *, was_there: bool, cached: int = 0
) -> CompileResult:
    return CompileResult(
        contents=contents,
        path="" if contents is not None else str(path),
        seconds=perf_counter() - started,
        nbytes=path.stat().st_size,
        reused_file=was_there,
        notes=notes,
        cached=cached,
        report=report,
    )


def _leaves_open(request: Request) -> bool:
    shapes = [value.shape for value in request.signature.inputs]
    return any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)


def file_name(kind: Kind, request: Request) -> str:
    """What tells the file from all others: the model, the kind of machine, and how it is compiled."""
    shapes = [sorted((name, tuple(shape)) for name, shape in shape_set.items()) for shape_set in request.shapes]
    key_text = repr((request.digest, kind.name, kind.devices, repr(request.for_compiling), shapes))
    return sha256(key_text.encode()).hexdigest()[:_SHOWN]


def written(contents: np.ndarray[Any, Any], name: str, folder: str | os.PathLike[str]) -> Path:
    """Return the path of a file with these contents in a folder of this machine; who comes later finds it.

    Sessions map it, so that the weights of all on one machine lie in its memory once.

    Raises:
        StoredFileError: the folder is somebody else's.
    """
    user_folder = Path(folder, f"{_FOLDER}-{os.getuid() if hasattr(os, 'getuid') else 'files'}")
    user_folder.mkdir(mode=0o700, exist_ok=True)
    status = user_folder.lstat()
    if user_folder.is_symlink() or (hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022)):
        raise StoredFileError(
            f"folder {str(user_folder)!r} is not yours alone, and programs in it are run; remove it",
            file=str(user_folder),
        )
    path = user_folder / f"{name}{_ENDING}"
    if not (path.is_file() and path.stat().st_size == contents.nbytes):
        replace_file(path, lambda file: file.write(contents.data))
    return path


def session_folder() -> Path:
    """Return the folder of this run of Ray on this machine, which is removed with it."""
    import ray

    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir(), context.get_session_name())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sizes_in(file: Any, inputs: Sequence[str]) -> int | None:
    """The largest number of rows that a compiled file serves; None where a plan of it leaves sizes open."""
    plans = list(file.message.plans)
    if any(plan.HasField("open") for plan in plans):
        return None
    firsts = {file.shapes(plan)[name][0] for plan in plans for name in inputs if file.shapes(plan)[name]}
    return max(firsts, default=None)


_MOST_TRIES = 3
"""Of machines that die while they compile."""
_MOST_EXECUTIONS = 16
"""That are remembered; a dataset that is consumed again is executed again."""


class SessionRecord(NamedTuple):
    """A session that an actor made."""

    actor: str
    machine: str
    address: str
    kind: str
    devices: tuple[str, ...]
    seconds: float
    """From the file to a session that can run."""


class JobSnapshot(NamedTuple):
    """What the job knows, as it travels to who asks."""

    totals: Totals | None
    """Of the newest execution; None before any batch."""
    executions: int
    kinds: Mapping[str, Kind]
    compile_results: Mapping[str, CompileResult]
    compiles: Mapping[str, int]
    """Per kind, how often it was compiled."""
    sessions: Sequence[SessionRecord]


class Job:
    """See the module. Its methods run in one event loop, so none of them needs a lock."""

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
        """Return what is compiled for a kind, as a reference to its bytes or a path; the first who asks has it made.

        Args:
            kind: of the machine of the caller.
            node: of the caller, where it is compiled.
            shapes: of the rows that the caller has, for a request that says none.
        """
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
                if self._tasks.get(kind.name) is task:  # the machine died; somebody else's is asked
                    del self._tasks[kind.name]
                if not remaining_tries:
                    raise
            else:
                return reference, compile_result.path
        raise AssertionError("the last try returns or raises")

    async def _compile(self, kind: Kind, node: str, shapes: Any) -> tuple[Any, CompileResult]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_affinity = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        run = ray.remote(compile_locally).options(num_cpus=0, max_retries=0, scheduling_strategy=node_affinity)
        request = self._request if shapes is None else replace(self._request, shapes=_each_once(shapes))
        compile_result: CompileResult = await run.remote(self._contents, kind, request)
        # The bytes belong to this actor from here on, so that they stay when the machine goes that compiled.
        reference = None if compile_result.contents is None else ray.put(compile_result.contents)
        self._compiles[kind.name] = self._compiles.get(kind.name, 0) + (not compile_result.reused_file)
        self._made[kind.name] = replace(compile_result, contents=None)
        return reference, compile_result

    async def began(self, record: SessionRecord) -> None:
        """Remember a session."""
        self._sessions[record.actor] = record

    async def add(self, record: BatchRecord) -> None:
        """Count a batch, once."""
        totals = self._executions.get(record.key.execution)
        if totals is None:
            totals = self._executions[record.key.execution] = Totals()
            if len(self._executions) > _MOST_EXECUTIONS:
                del self._executions[next(iter(self._executions))]
                self._ended += 1
        totals.add(record)

    async def snapshot(self) -> JobSnapshot:
        """What is known by now; not which tasks were counted, of which there may be millions."""
        newest = next(reversed(self._executions.values()), None)
        execution = newest and replace(newest, counted_batches={})
        return JobSnapshot(
            execution, len(self._executions) + self._ended, self._kinds, self._made, self._compiles,
            tuple(self._sessions.values()),
        )  # fmt: skip


def _each_once(shapes: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Sets of shapes, without repetitions."""
    return tuple(shape_set for place, shape_set in enumerate(shapes) if shape_set not in shapes[:place])


class Compiler(Job):
    """A `Job` whose life is Ray Serve's: a replica that is started later finds what was compiled before."""

    def __init__(self, contents: bytes, request: Request) -> None:
        import ray

        super().__init__([ray.put(np.frombuffer(contents, np.uint8))], request)
