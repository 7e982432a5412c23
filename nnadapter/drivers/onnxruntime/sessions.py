"""Sessions of ONNX Runtime: options, threads, the shared arena, executions, and their profiles as events of a trace."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from nnadapter.drivers.interface import Execution
from nnadapter.drivers.onnxruntime.failures import (
    disabled_optimizers,
    translated,
    with_fewer_optimizations,
    without_extended,
    wrong_fusions,
)
from nnadapter.drivers.onnxruntime.values import RunInto, run_into_of, run_of
from nnadapter.errors import InvalidOptionError
from nnadapter.ir.operand import Array
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, QUIET
from nnadapter.process.resources import memoize, new_lock
from nnadapter.traces.recorder import Recorder
from nnadapter.traces.trace import ENGINE, Event, Trace

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_CLOCKS = (time.time_ns, time.monotonic_ns)
"""One of them is ONNX Runtime's, depending on the platform; they are decades apart."""
_READINGS = 20
"""Pairs of readings of two clocks, to tell how far they are apart."""
_LEFT_OUT = frozenset(("thread_scheduling_stats",))
"""What is long and says little."""
_AROUND_NODES = 2
"""Events of a run beside those of its nodes."""
_numbers = count()


class SessionProfile:
    """What one session of ONNX Runtime notes of itself, from `begin` to `end`.

    Args:
        recorder: where its events go.
        lane: of the device that the session is a program of.
        nodes: of its model; who learns it later says so then.
    """

    def __init__(self, recorder: Recorder, lane: str, nodes: int = 0) -> None:
        self.prefix = str(Path(recorder.folder()) / str(next(_numbers)))
        """Of its file."""
        self._recorder, self._lane, self.nodes = recorder, lane, nodes
        self._sessions: list[onnxruntime.InferenceSession] = []
        self._files: list[str] = []
        self._start = 0

    def begin(self, session: onnxruntime.InferenceSession) -> None:
        """Take the session that was made with `prefix`."""
        self._start = _by_our_clock(int(session.get_profiling_start_time_ns()))
        self._sessions.append(session)
        self._recorder.add_source(self._read)

    def ran(self) -> None:
        """Say that the session ran once; where it notes nothing any more, its events are lost, and count as such."""
        if not self._recorder.reserve_events(self.nodes + _AROUND_NODES):
            self.end()

    def end(self) -> None:
        """Have the session write what it noted. May be called again."""
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
        facts = {name: fact for name, fact in entry.get("args", {}).items() if name not in _LEFT_OUT}
        end = start + int(entry["dur"]) * 1_000
        return Event(self._lane, int(entry["tid"]), ENGINE, str(entry["name"]), start, end, facts)


def profile_of(trace: Trace, lane: str, nodes: int = 0) -> SessionProfile | None:
    """Return what takes a session's own events, None where nobody keeps them, or there are enough."""
    if isinstance(trace, Recorder) and trace.reserve_events(_AROUND_NODES):
        return SessionProfile(trace, lane, nodes)
    return None


def _by_our_clock(started: int) -> int:
    """What the trace's clock showed when ONNX Runtime's showed `started`, or would have shown."""
    clock = min(_CLOCKS, key=lambda read_clock: abs(read_clock() - started))
    readings = []
    for _ in range(_READINGS):
        start_ns, theirs, end_ns = time.perf_counter_ns(), clock(), time.perf_counter_ns()
        readings.append((end_ns - start_ns, (start_ns + end_ns) // 2 - theirs))
    return started + min(readings)[1]  # the pair between whose readings nothing came


def _entries(file: Path) -> list[Mapping[str, Any]]:
    try:
        entries: list[Mapping[str, Any]] = json.loads(file.read_bytes())
    except (OSError, ValueError):  # the disk is full, say: the rest of the trace is as good without
        return []
    return entries


_NUMBERS = "fiub"
"""Kinds of arrays that ONNX Runtime's Python interface takes the address of."""


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model that the installed ONNX Runtime loads."""

    contents: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    """What initializers hold that `contents` has no contents of; a session of it reads them as long as it lives."""

    @property
    def nbytes(self) -> int:
        """What it takes together."""
        return len(self.contents) + sum(array.nbytes for array in self.weights.values())

    def add_to(self, options: onnxruntime.SessionOptions) -> None:
        """Let the next session that is made with these options have the weights."""
        if self.weights:
            from nnadapter.process.real_onnxruntime import onnxruntime

            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self.weights.values()]
            options.add_external_initializers(list(self.weights), values)


def loadable_of(model: onnx.ModelProto, *, by_address: bool) -> Loadable:
    """Return a model at a version that ONNX Runtime loads.

    Args:
        model: the model.
        by_address: large weights may be handed over beside it. Session options keep them for good, so a caller's own
            options are not for that.

    Raises:
        InvalidModelError: a node has no such meaning in any opset that ONNX Runtime knows.
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
"""The entry of session options that says that a session uses the allocator of the environment."""
_SHRINKS = ("memory.enable_memory_arena_shrinkage", "cpu:0")
_DOUBLING = 0
_FIRST_BYTES = 1 << 20
SMALLEST_MODEL = bytes.fromhex(
    "080a3a3e0a100a017812017922084964656e746974791208736d616c6c6573745a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)
"""An ONNX model, y = Identity(x) of one float, of opset 17: who runs a compiled model may have no onnx to make it."""


@memoize(1)
def register_arena() -> None:
    """Make the arena that sessions with `USES_SHARED_ARENA` share; once in the process."""
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
    """Give the pieces of the arena back in which nothing lies now.

    ONNX Runtime does so at the end of a run that asks for it: here of a session that does next to nothing, into memory
    of ours, so that nothing of its own stands in the way.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    session = _smallest_session()
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(*_SHRINKS)
    binding, result = session.io_binding(), np.empty(1, np.float32)
    binding.bind_cpu_input("x", np.zeros(1, np.float32))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result))
    session.run_with_iobinding(binding, options)


@memoize(1)
def _smallest_session() -> Any:
    from nnadapter.process.real_onnxruntime import onnxruntime

    register_arena()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = QUIET, 1
    options.add_session_config_entry(USES_SHARED_ARENA, "1")
    return onnxruntime.InferenceSession(SMALLEST_MODEL, options, providers=[CPU_PROVIDER])


run_options: ContextVar[onnxruntime.RunOptions | None] = ContextVar("run_options", default=None)
"""The caller's run options for the run that is under way in this thread."""
options_lock = new_lock()
"""Held while session options are changed for a session that is made."""
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
"""Source: onnxruntime_run_options_config_keys.h; ONNX Runtime does not list those of an object."""
_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for files that a model names; else in the current folder, if the model is in memory."""
_OF_WHOLE_MODELS = {
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
"""Entries of session options that need a session of the whole model, and their default; others concern the nodes of a
CPU segment. Source: onnxruntime_session_options_config_keys.h."""
_ignored: WeakKeyDictionary[onnxruntime.SessionOptions, Mapping[str, str]] = WeakKeyDictionary()
_CONFIG_FROM_MODEL = "ORT_LOAD_CONFIG_FROM_MODEL"
_AFFINITIES = "session.intra_op_thread_affinities"
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


def new_session_options() -> onnxruntime.SessionOptions:
    """ONNX Runtime's options as they come."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.SessionOptions()


def without_files(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Let sessions of these options open no file that a model names; never a caller's, who cannot take it back.

    Weights in files are read before. A model that still names some comes from a compiled file that somebody forged.
    """
    options.add_session_config_entry(_FOLDER, os.devnull)
    return options


def new_run_options() -> onnxruntime.RunOptions:
    """ONNX Runtime's options of one run as they come."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.RunOptions()


def copied_run_options(options: onnxruntime.RunOptions) -> onnxruntime.RunOptions:
    """Return a copy of run options, without their active adapters.

    ONNX Runtime does not list the entries of run options: those of `nnadapter.ort.RunOptions` are all copied, of others
    those that ONNX Runtime and its providers know.
    """
    copied = new_run_options()
    for name in _RUN_FIELDS:
        setattr(copied, name, getattr(options, name))
    for key, value in entries_of(options).items():
        copied.add_run_config_entry(key, value)
    return copied


def entries_of(options: onnxruntime.RunOptions) -> Mapping[str, str]:
    """Return the configuration entries of run options, as far as they can be read."""
    recorded: Mapping[str, str] | None = getattr(options, "entries", None)  # of `nnadapter.ort.RunOptions`
    if recorded is not None:
        return recorded
    entries = ((key, _run_entry(options, key)) for key in _RUN_ENTRIES)
    return {key: value for key, value in entries if value is not None}


def _run_entry(options: onnxruntime.RunOptions, key: str) -> str | None:
    try:
        return str(options.get_run_config_entry(key))
    except RuntimeError:  # there is no such entry
        return None


Repeat = Callable[
    [Sequence[str], Mapping[str, Any], Exception], "tuple[onnxruntime.InferenceSession, list[Array]] | None"
]
"""Repeats a failed run with fewer optimizations: another session and its results, or None if that fails as well."""


class SessionExecution(Execution):
    """Runs a session; it holds nothing of its own."""

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
        """See `Execution.compute`. Sequences and optionals pass as ONNX Runtime's Python objects."""
        return self.run(self.output_names, dict(zip(self.input_names, inputs, strict=True)))

    def compute_into(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`: ONNX Runtime writes there, where it takes the types of inputs and outputs."""
        if self._run_into is None:
            return self.compute(inputs)
        try:
            self._run_into(
                zip(self.input_names, inputs, strict=True),
                zip(self.output_names, outputs, strict=True),
                run_options.get(),
            )
        except Exception as error:  # noqa: BLE001  it is raised if the run fails again
            return self._repeated(self.output_names, dict(zip(self.input_names, inputs, strict=True)), error)
        return outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Array]:
        """Return the outputs of these names from the inputs by name: `compute`, for those who have them so."""
        try:
            results: list[Array] = self._run(names, feeds, run_options.get())
        except Exception as error:  # noqa: BLE001  it is raised if the run fails again
            return self._repeated(names, feeds, error)
        return results

    def _repeated(self, names: Sequence[str], feeds: Mapping[str, Any], error: Exception) -> list[Array]:
        """Return the results of a failed run with fewer optimizations, or raise its error."""
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
    """Return what runs a session, and says so to what takes its own events, if somebody does."""
    if profile is None:
        return SessionExecution(session, where, repeat)
    return _ProfiledExecution(session, where, profile)


class _ProfiledExecution(SessionExecution):
    """Runs a session that notes what it does."""

    def __init__(self, session: onnxruntime.InferenceSession, where: str, profile: SessionProfile) -> None:
        super().__init__(session, where)
        self._profile = profile
        self._run_into = None  # every run goes by `run`

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
    """Return a session for a serialized model. Optimizers that compute it wrongly are disabled.

    Args:
        model: the model; whoever has the session keeps its weights.
        session_options: the session options; quiet ones if None.
        has_pool: there is a permit for it.
        spins: its threads may spin while they wait for work.
        shares_arena: what it needs for a run comes from the arena that all such sessions share, unless the options say
            something else of arenas.
        providers: who computes; empty for those that `session_options` names. Nobody else is tried then, if they fail.
        without: further optimizers to disable, see `wrong_optimizers`.
        profile: what takes the session's own events. Options that ask for a profile have their wish there alone.
        notes: takes a note if fewer optimizations run; if None, one level is tried.
        accept: raises if a session with fewer optimizations does not do.
        failed: the error of a session with all optimizations, if there was one.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    wrong = disabled_optimizers(session_options, (*without, *wrong_fusions(model.contents)))

    if session_options is None:
        options = without_files(new_session_options())
        options.log_severity_level = QUIET
        model.add_to(options)
    else:
        options = session_options
    # SessionOptions cannot be copied, so the caller's own are changed while the session is made, under a lock. An
    # entry cannot be taken out again: spinning stays off in the caller's object, unless the caller had said something.
    with options_lock:
        for key in () if spins else _SPINNING:
            if not _has_entry(options, key):
                options.add_session_config_entry(key, "0")
        if shares_arena and options.enable_cpu_mem_arena and not _has_entry(options, USES_SHARED_ARENA):
            register_arena()
            options.add_session_config_entry(USES_SHARED_ARENA, "1")
        threads = options.intra_op_num_threads
        options.intra_op_num_threads = threads or (0 if has_pool else 1)
        written = options.optimized_model_filepath
        options.optimized_model_filepath = ""  # it is for the whole model, and this may be a segment

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

        try:
            with profiling(options, profile), _options_as_given(), _without_ignored(options):
                session = _optimized(attempt, options, failed, notes)
        finally:
            options.intra_op_num_threads, options.optimized_model_filepath = threads, written
    if profile is not None:
        profile.begin(session)
    return session


def _optimized(
    attempt: Callable[[], onnxruntime.InferenceSession],
    options: onnxruntime.SessionOptions,
    failed: Exception | None,
    notes: list[str] | None,
) -> onnxruntime.InferenceSession:
    """Return a session with all optimizations, or with fewer if that failed."""
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


@contextmanager
def profiling(options: onnxruntime.SessionOptions, profile: SessionProfile | None) -> Iterator[None]:
    """Have sessions that are made in the block write the profile, or none; the options are put back behind it."""
    saved_settings = options.enable_profiling, options.profile_file_prefix
    options.enable_profiling = profile is not None
    if profile is not None:
        options.profile_file_prefix = profile.prefix
    try:
        yield
    finally:
        options.enable_profiling, options.profile_file_prefix = saved_settings


@contextmanager
def _options_as_given() -> Iterator[None]:
    """Make sessions that are opened in the block use their options, not those in the model; `options_lock` is held.

    ONNX Runtime reads this variable at each opening, and refuses a session whose argument says something else.
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
    """Return where session options say that the external data of a model in memory lie; None where they do not."""
    key = "session.model_external_initializers_file_folder_path"
    return None if options is None else session_entry(options, key) or None


def whole_model_entries(options: onnxruntime.SessionOptions) -> Mapping[str, str]:
    """Return the entries of session options that need a session of the whole model, without effect on its segments."""
    raw_entries = {key: session_entry(options, key) for key in _OF_WHOLE_MODELS}
    entries = {key: value for key, value in raw_entries.items() if value is not None and value not in ("", "0")}
    _ignored[options] = entries
    return entries


@contextmanager
def _without_ignored(options: onnxruntime.SessionOptions) -> Iterator[None]:
    """Make sessions that are opened in the block ignore `whole_model_entries`; `options_lock` is held."""
    entries = _ignored.get(options, {})
    for key in entries:
        options.add_session_config_entry(key, _OF_WHOLE_MODELS[key])
    try:
        yield
    finally:
        for key, value in entries.items():
            options.add_session_config_entry(key, value)


def check_session_options(options: onnxruntime.SessionOptions) -> None:
    """Check that ONNX Runtime opens a session with these options, whatever the model.

    Raises:
        InvalidOptionError: it opens none; the cause is its error.
        CancelledError: the load cancellation flag is set.
    """
    from nnadapter.process.real_onnxruntime import onnxruntime

    summary, advice = (
        "ONNX Runtime opens no session with the session options",
        "correct them, or leave out what it names",
    )
    with options_lock, profiling(options, None), _options_as_given(), _without_ignored(options):
        saved_settings = options.optimized_model_filepath, options.intra_op_num_threads, options.inter_op_num_threads
        if not _has_entry(options, _AFFINITIES):  # which have to be as many as threads
            options.intra_op_num_threads = options.inter_op_num_threads = 1  # making threads takes milliseconds
        options.optimized_model_filepath = ""
        try:
            with translated(summary, advice, InvalidOptionError):
                onnxruntime.InferenceSession(SMALLEST_MODEL, options, providers=[CPU_PROVIDER], enable_fallback=0)
        finally:
            options.optimized_model_filepath, options.intra_op_num_threads, options.inter_op_num_threads = (
                saved_settings
            )


def session_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return a configuration entry of session options; None if there is none."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _has_entry(options: onnxruntime.SessionOptions, key: str) -> bool:
    return session_entry(options, key) is not None
