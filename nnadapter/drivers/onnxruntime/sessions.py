"""ONNX Runtime sessions: options, shared arena, executions and profiles."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from nnadapter.drivers.interface import Execution
from nnadapter.drivers.onnxruntime.failures import (
    config_entry,
    disabled_optimizers,
    temporarily,
    translated,
    with_fewer_optimizations,
    without_extended,
    wrong_fusions,
)
from nnadapter.drivers.onnxruntime.values import FLOAT, RunInto, model_of_one, run_into_of, run_of, tiny_session_options
from nnadapter.errors import InvalidOptionError
from nnadapter.ir.operand import Array
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, QUIET
from nnadapter.process.resources import memoize, new_lock
from nnadapter.records import dataclass, field
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import ENGINE, Event, Trace

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_CLOCKS = (time.time_ns, time.monotonic_ns)
"""Possible clocks of ONNX Runtime's profiler; their times differ by decades."""
_READINGS = 20
_OMITTED_FACTS = frozenset(("thread_scheduling_stats",))
_AROUND_NODES = 2
_numbers = count()


class SessionProfile:
    """Recording of ONNX Runtime's events in one session, from `begin` to `end`."""

    def __init__(self, recorder: Recorder, lane: str, nodes: int = 0) -> None:
        self.prefix = str(Path(recorder.folder()) / str(next(_numbers)))
        self._recorder, self._lane, self.nodes = recorder, lane, nodes
        self._sessions: list[onnxruntime.InferenceSession] = []
        self._files: list[str] = []
        self._start = 0

    def begin(self, session: onnxruntime.InferenceSession) -> None:
        self._start = _to_trace_clock(int(session.get_profiling_start_time_ns()))
        self._sessions.append(session)
        self._recorder.add_source(self._read)

    def ran(self) -> None:
        if not self._recorder.reserve_events(self.nodes + _AROUND_NODES):
            self.end()

    def end(self) -> None:
        with suppress(IndexError):
            self._files.append(self._sessions.pop().end_profiling())

    def _read(self) -> Iterator[Event]:
        self.end()
        for file in self._files:
            for entry in _entries(Path(file)):
                if entry.get("ph") == "X":
                    yield self._event(entry)

    def _event(self, entry: Mapping[str, Any]) -> Event:
        start = self._start + int(entry["ts"]) * 1_000
        facts = {name: fact for name, fact in entry.get("args", {}).items() if name not in _OMITTED_FACTS}
        end = start + int(entry["dur"]) * 1_000
        return Event(self._lane, int(entry["tid"]), ENGINE, str(entry["name"]), start, end, facts)


def profile_of(trace: Trace, lane: str, nodes: int = 0) -> SessionProfile | None:
    """Return a profile whose events appear in the lane `lane`; None if the trace does not record or is full."""
    if isinstance(trace, Recorder) and trace.reserve_events(_AROUND_NODES):
        return SessionProfile(trace, lane, nodes)
    return None


def _to_trace_clock(started: int) -> int:
    clock = min(_CLOCKS, key=lambda read_clock: abs(read_clock() - started))
    readings = []
    for _ in range(_READINGS):
        start_ns, theirs, end_ns = time.perf_counter_ns(), clock(), time.perf_counter_ns()
        readings.append((end_ns - start_ns, (start_ns + end_ns) // 2 - theirs))
    return started + min(readings)[1]  # the shortest gap is the most accurate


def _entries(file: Path) -> list[Mapping[str, Any]]:
    try:
        entries: list[Mapping[str, Any]] = json.loads(file.read_bytes())
    except (OSError, ValueError):  # disk full, for example
        return []
    return entries


_NUMBERS = "fiub"
"""numpy's dtype kinds of arrays that are passed by address."""


@dataclass(frozen=True, slots=True)
class Loadable:
    """Model that the installed ONNX Runtime loads."""

    contents: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    """Weights that are not in `contents`. The session reads them as long as it lives."""

    @property
    def nbytes(self) -> int:
        return len(self.contents) + sum(array.nbytes for array in self.weights.values())

    def add_to(self, options: onnxruntime.SessionOptions) -> None:
        if self.weights:
            from nnadapter.process.real_onnxruntime import onnxruntime

            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self.weights.values()]
            options.add_external_initializers(list(self.weights), values)


def loadable_of(model: onnx.ModelProto, *, by_address: bool) -> Loadable:
    """Convert a model to a version that ONNX Runtime loads.

    With `by_address`, large weights are passed separately. Never combine it with a caller's session options,
    which would keep them forever.

    Raises:
        InvalidModelError: no supported opset can express a node.
    """
    from nnadapter.onnx.construction import copied
    from nnadapter.onnx.onnxruntime_limits import loadable
    from nnadapter.onnx.references import array_of, inlined, is_reference, with_contents

    lowered = loadable(model)
    if not by_address:
        return Loadable(inlined(lowered).SerializeToString())
    weights = {tensor.name: array_of(tensor) for tensor in filter(is_reference, lowered.graph.initializer)}
    plain = {name: array for name, array in weights.items() if array.dtype.kind in _NUMBERS}
    if len(plain) < len(weights):
        lowered = copied(lowered)
        for tensor in lowered.graph.initializer:
            if tensor.name in weights and tensor.name not in plain:
                tensor.CopyFrom(with_contents(tensor))
    return Loadable(lowered.SerializeToString(), plain)


USES_SHARED_ARENA = "session.use_env_allocators"
_SHRINKS = ("memory.enable_memory_arena_shrinkage", "cpu:0")
_DOUBLING = 0
_FIRST_BYTES = 1 << 20
_SMALLEST_MODEL = model_of_one(b"Identity", 1, FLOAT, (1,))


@memoize(1)
def register_arena() -> None:
    """Create the shared arena."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    sizes = {
        "arena_extend_strategy": _DOUBLING,
        "initial_chunk_size_bytes": _FIRST_BYTES,
        "initial_growth_chunk_size_bytes": _FIRST_BYTES,
    }
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(sizes))


def shrink_arena() -> None:
    """Release unused memory of the shared arena, by a tiny run that requests it."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    session = _smallest_session()
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(*_SHRINKS)
    binding, result = session.io_binding(), np.empty(1, np.float32)
    binding.bind_cpu_input("a", np.zeros(1, np.float32))
    binding.bind_ortvalue_output("c", onnxruntime.OrtValue.ortvalue_from_numpy(result))
    session.run_with_iobinding(binding, options)


@memoize(1)
def _smallest_session() -> Any:
    from nnadapter.process.real_onnxruntime import onnxruntime

    register_arena()
    options = tiny_session_options()
    options.add_session_config_entry(USES_SHARED_ARENA, "1")
    return onnxruntime.InferenceSession(_SMALLEST_MODEL, options, providers=[CPU_PROVIDER])


run_options: ContextVar[onnxruntime.RunOptions | None] = ContextVar("run_options", default=None)
"""Run options of the caller for the run of this thread."""
options_lock = new_lock()
_RUN_FIELDS = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches", "terminate")
_RUN_ENTRIES = (
    "memory.enable_memory_arena_shrinkage",
    "disable_synchronize_execution_providers",
    "gpu_graph_id",
    "qnn.htp_perf_mode",
    "qnn.htp_perf_mode_post_run",
    "qnn.rpc_control_latency",
    "qnn.lora_config",
)
"""Entries of run options that are read, since ONNX Runtime cannot list them. Source:
onnxruntime_run_options_config_keys.h.
"""
_FOLDER = "session.model_external_initializers_file_folder_path"
_MODEL_ENTRIES = {
    "ep.context_enable": "",
    "ep.context_file_path": "",
    "session.collect_node_memory_stats_to_file": "",
    "session.compile_only": "",
    "session.disable_model_compile": "",
    "session.fail_on_suboptimal_compiled_model": "",
    "session.gqa_value_layout": "BNSH",
    "session.layer_assignment_settings": "",
    "session.load_model_format": "",
    "session.max_shape_override": "",
    "session.name_based_layer_assignment": "",
    "session.node_partition_config_file": "",
    "session.resource_cuda_partitioning_settings": "",
    "session.save_external_prepacked_constant_initializers": "",
    "session.save_model_format": "",
    "session.strict_shape_type_inference": "",
}
"""Entry that applies only to entire models -> default. Source: onnxruntime_session_options_config_keys.h."""
_ignored: WeakKeyDictionary[onnxruntime.SessionOptions, Mapping[str, str]] = WeakKeyDictionary()
_CONFIG_FROM_MODEL = "ORT_LOAD_CONFIG_FROM_MODEL"
_AFFINITIES = "session.intra_op_thread_affinities"
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


def new_session_options() -> onnxruntime.SessionOptions:
    """Return default session options."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.SessionOptions()


def without_files(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Prevent sessions from opening files that a forged model may name. Irreversible, so not for a caller's options."""
    options.add_session_config_entry(_FOLDER, os.devnull)
    return options


def new_run_options() -> onnxruntime.RunOptions:
    """Return default run options."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.RunOptions()


def copied_run_options(options: onnxruntime.RunOptions) -> onnxruntime.RunOptions:
    """Copy run options, except adapters and entries that are not in `_RUN_ENTRIES`."""
    copied = new_run_options()
    for name in _RUN_FIELDS:
        setattr(copied, name, getattr(options, name))
    for key, value in entries_of(options).items():
        copied.add_run_config_entry(key, value)
    return copied


def entries_of(options: onnxruntime.RunOptions) -> Mapping[str, str]:
    """Return the readable entries of run options."""
    recorded: Mapping[str, str] | None = getattr(options, "entries", None)  # of `nnadapter.ort.RunOptions`
    if recorded is not None:
        return recorded
    entries = ((key, config_entry(options.get_run_config_entry, key)) for key in _RUN_ENTRIES)
    return {key: value for key, value in entries if value is not None}


Repeat = Callable[
    [Sequence[str], Mapping[str, Any], Exception], "tuple[onnxruntime.InferenceSession, list[Array]] | None"
]
"""Function that repeats a failed run with fewer optimizations. It returns the new session and the results, or None on
failure.
"""


class SessionExecution(Execution):
    """Execution of a session."""

    def __init__(self, session: onnxruntime.InferenceSession, where: str, repeat: Repeat | None = None) -> None:
        self._repeat = repeat
        self._failure = f"ONNX Runtime failed on {where}"
        self.input_names = tuple(value.name for value in session.get_inputs())
        self.output_names = [value.name for value in session.get_outputs()]
        self._use(session)

    def _use(self, session: onnxruntime.InferenceSession) -> None:
        self._run = run_of(session)
        self._run_into: RunInto | None = run_into_of(session)

    def compute(self, inputs: Sequence[Any]) -> Sequence[Array]:
        """Run the session; sequences and optionals are ONNX Runtime's Python objects."""
        return self.run(self.output_names, dict(zip(self.input_names, inputs, strict=True)))

    def compute_into(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> Sequence[Array]:
        if self._run_into is None:
            return self.compute(inputs)
        try:
            self._run_into(
                zip(self.input_names, inputs, strict=True),
                zip(self.output_names, outputs, strict=True),
                run_options.get(),
            )
        except Exception as error:  # noqa: BLE001  raised if the repetition fails
            return self._repeated(self.output_names, dict(zip(self.input_names, inputs, strict=True)), error)
        return outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Array]:
        try:
            results: list[Array] = self._run(names, feeds, run_options.get())
        except Exception as error:  # noqa: BLE001  raised if the repetition fails
            return self._repeated(names, feeds, error)
        return results

    def _repeated(self, names: Sequence[str], feeds: Mapping[str, Any], error: Exception) -> list[Array]:
        repeated = self._repeat(names, feeds, error) if self._repeat is not None else None
        if repeated is None:
            with translated(self._failure, "check the inputs"):
                raise error
        session, results = repeated
        self._use(session)
        return results


def session_execution(
    session: onnxruntime.InferenceSession,
    where: str,
    profile: SessionProfile | None,
    repeat: Repeat | None = None,
) -> SessionExecution:
    """Return an execution of a session; with a profile, runs are counted. `where` names the device in errors."""
    if profile is None:
        return SessionExecution(session, where, repeat)
    return _ProfiledExecution(session, where, profile)


class _ProfiledExecution(SessionExecution):
    def __init__(self, session: onnxruntime.InferenceSession, where: str, profile: SessionProfile) -> None:
        super().__init__(session, where)
        self._profile = profile
        self._run_into = None  # every run uses `run`

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Array]:
        try:
            return super().run(names, feeds)
        finally:
            self._profile.ran()


def open_session(
    model: Loadable,
    session_options: onnxruntime.SessionOptions | None,
    *,
    has_pool: bool,
    spins: bool,
    shares_arena: bool = False,
    providers: Sequence[str] = (CPU_PROVIDER,),
    without: Sequence[str] = (),
    profile: SessionProfile | None = None,
    notes: list[str] | None = None,
    accept: Callable[[onnxruntime.InferenceSession], object] = lambda session: None,
    failed: Exception | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session with defective optimizers disabled.

    Args:
        model: its weights must outlive the session.
        session_options: the caller's; None for quiet defaults.
        has_pool: the session may have a thread pool.
        spins: threads may spin.
        shares_arena: use the shared arena, unless the options configure arenas.
        providers: empty for the providers in the options, without fallback.
        without: further optimizers to disable.
        profile: receives events, instead of the options' profile.
        notes: receives a note if the optimization level is lowered; None forbids this.
        accept: raises an error if a session is unusable.
        failed: error of a run with all optimizations; the session gets fewer optimizations.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    wrong = disabled_optimizers(session_options, (*without, *wrong_fusions(model.contents)))

    if session_options is None:
        options = without_files(new_session_options())
        options.log_severity_level = QUIET
        model.add_to(options)
    else:
        options = session_options
    # SessionOptions cannot be copied, so the caller's object is changed temporarily. Entries cannot be removed:
    # spinning stays off.
    with options_lock:
        for key in () if spins else _SPINNING:
            if session_entry(options, key) is None:
                options.add_session_config_entry(key, "0")
        if shares_arena and options.enable_cpu_mem_arena and session_entry(options, USES_SHARED_ARENA) is None:
            register_arena()
            options.add_session_config_entry(USES_SHARED_ARENA, "1")

        def attempt() -> onnxruntime.InferenceSession:
            with without_extended(options, wrong):
                session = onnxruntime.InferenceSession(
                    model.contents,
                    options,
                    providers=list(providers) or None,
                    enable_fallback=int(bool(providers)),
                    disabled_optimizers=wrong,
                )
            accept(session)
            return session

        threads = options.intra_op_num_threads or (0 if has_pool else 1)
        with (
            # for the entire model, not for a segment
            temporarily(options, intra_op_num_threads=threads, optimized_model_filepath=""),
            profiling(options, profile),
            _options_as_given(),
            _without_ignored(options),
        ):
            session = _optimized(attempt, options, failed, notes)
    if profile is not None:
        profile.begin(session)
    return session


def _optimized(
    attempt: Callable[[], onnxruntime.InferenceSession],
    options: onnxruntime.SessionOptions,
    failed: Exception | None,
    notes: list[str] | None,
) -> onnxruntime.InferenceSession:
    summary = "ONNX Runtime failed to run a CPU segment"
    if failed is None:
        try:
            return attempt()
        except Exception as error:
            if notes is None:
                raise
            summary, failed = "ONNX Runtime failed to load a CPU segment", error
    session, note = with_fewer_optimizations(options, attempt, summary, failed)
    if notes is not None:
        notes.append(note)
    return session


def profiling(options: onnxruntime.SessionOptions, profile: SessionProfile | None) -> AbstractContextManager[None]:
    """Enable profiling into `profile` in the block, or disable it if `profile` is None."""
    if profile is None:
        return temporarily(options, enable_profiling=False)
    return temporarily(options, enable_profiling=True, profile_file_prefix=profile.prefix)


@contextmanager
def _options_as_given() -> Iterator[None]:
    """Ignore options that models contain, in the block; the caller holds `options_lock`.

    ONNX Runtime reads the environment variable that is changed here for every session.
    """
    if os.environ.get(_CONFIG_FROM_MODEL) != "1":
        yield
        return
    os.environ[_CONFIG_FROM_MODEL] = "0"
    try:
        yield
    finally:
        os.environ[_CONFIG_FROM_MODEL] = "1"


def external_folder(options: onnxruntime.SessionOptions | None) -> str | None:
    """Return the folder of external data, if set."""
    return None if options is None else session_entry(options, _FOLDER) or None


def whole_model_entries(options: onnxruntime.SessionOptions) -> Mapping[str, str]:
    """Return the entries that apply only to entire models, and disable the entries in later sessions with `options`."""
    raw_entries = {key: session_entry(options, key) for key in _MODEL_ENTRIES}
    entries = {key: value for key, value in raw_entries.items() if value is not None and value not in ("", "0")}
    _ignored[options] = entries
    return entries


@contextmanager
def _without_ignored(options: onnxruntime.SessionOptions) -> Iterator[None]:
    entries = _ignored.get(options, {})
    for key in entries:
        options.add_session_config_entry(key, _MODEL_ENTRIES[key])
    try:
        yield
    finally:
        for key, value in entries.items():
            options.add_session_config_entry(key, value)


def check_session_options(options: onnxruntime.SessionOptions) -> None:
    """Check session options with a tiny model.

    Raises:
        InvalidOptionError: ONNX Runtime rejects them.
        CancelledError: the load cancellation flag is set.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    problem, advice = "ONNX Runtime opens no session with the session options", "correct them, or remove the named one"
    # creating threads is slow, but affinities must match their number
    sets_affinities = session_entry(options, _AFFINITIES) is not None
    threads = {} if sets_affinities else {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
    with (
        options_lock,
        profiling(options, None),
        _options_as_given(),
        _without_ignored(options),
        temporarily(options, optimized_model_filepath="", **threads),
        translated(problem, advice, InvalidOptionError),
    ):
        onnxruntime.InferenceSession(_SMALLEST_MODEL, options, providers=[CPU_PROVIDER], enable_fallback=0)


def session_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return a session option entry, or None."""
    return config_entry(options.get_session_config_entry, key)
