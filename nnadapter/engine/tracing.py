"""Programs and streams whose computations are recorded as trace events.

When a device does what streams were given: a thread per traced stream waits for what is enqueued, in its order.

The host that enqueued a step may be elsewhere when the device begins it and when it ends. So an event is recorded
before the step and one behind it, and the thread looks at the clock when they happen,
unless the driver says when that was.

Programs whose computations are traced: what stands around those of drivers where a session has a trace.

A plan is bound to these as to any others, so that a run without a trace does not even ask.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nnadapter.drivers.boundary import create_execution
from nnadapter.drivers.capability import Threading
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import UNLIMITED, Control, Device, DeviceTensor, Event, Execution, Program, Stream
from nnadapter.drivers.registry import device_lock, open_device
from nnadapter.drivers.selection import CPU
from nnadapter.drivers.tensor_copies import Transfer
from nnadapter.engine.execution_pool import ExecutionPool, SameProgram
from nnadapter.errors import FAILURES, NNAdapterError, describe
from nnadapter.ir.operand import Array
from nnadapter.traces.trace import COMPILE, STEP, WAIT, Trace

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.drivers.onnxruntime.sessions import SessionProfile
    from nnadapter.traces.recorder import Recorder


Note = Callable[[int, int, BaseException | None], None]
"""Takes when the device began and ended, by the trace's clock, and how it failed."""
_Job = tuple[Event, Event, Note]


class Watcher:
    """Waits for what one stream does. Used by one thread at a time, as streams are."""

    def __init__(self, stream: Stream, now: Callable[[], int]) -> None:
        self._jobs: SimpleQueue[_Job | Lock | None] = SimpleQueue()
        Thread(target=_watch, args=(self._jobs, now), name="nnadapter trace", daemon=True).start()
        weakref.finalize(stream, self._jobs.put, None)

    def put(self, begin: Event, end: Event, note: Note) -> None:
        """Have `note` called when the second event has happened; both are closed then."""
        self._jobs.put((begin, end, note))

    def finish(self) -> None:
        """Wait until all is noted."""
        noted = Lock()
        noted.acquire()
        self._jobs.put(noted)
        noted.acquire()


class Watchers:
    """The watchers of the streams of one program."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._used: dict[Watcher, Stream] = {}

    def enqueued(
        self,
        device: Device,
        stream: Stream,
        enqueue: Callable[[], Sequence[Any] | None],
        noting: Callable[[Sequence[Any]], Note],
    ) -> Sequence[Any] | None:
        """Watch what `enqueue` puts into a stream, and return what it gives; None where nothing is.

        Args:
            device: the stream's.
            stream: where it is put.
            enqueue: puts it there.
            noting: makes what takes note, of what `enqueue` gave.
        """
        begin, end = device.create_event(), device.create_event()
        stream.record(begin)
        outputs = enqueue()
        if outputs is None:
            return None
        stream.record(end)
        watcher = _watcher_of(stream, self._now)
        self._used[watcher] = stream  # a watcher ends with its stream, and could not tell any more what is noted
        watcher.put(begin, end, noting(outputs))
        return outputs

    def finish(self) -> None:
        """Wait until all is noted."""
        for watcher in self._used:
            watcher.finish()
        self._used.clear()


_watchers: weakref.WeakKeyDictionary[Stream, Watcher] = weakref.WeakKeyDictionary()
"""Programs share the one of a stream, so that its events are in order."""


def _watcher_of(stream: Stream, now: Callable[[], int]) -> Watcher:
    watcher = _watchers.get(stream)
    if watcher is None:
        watcher = _watchers[stream] = Watcher(stream, now)
    return watcher


def _watch(jobs: SimpleQueue[_Job | Lock | None], now: Callable[[], int]) -> None:
    while (job := jobs.get()) is not None:
        if not isinstance(job, tuple):
            job.release()
            continue
        begin, end, note = job
        with suppress(*FAILURES):  # of a step before it
            begin.synchronize()
        start, failure = begin.happened_ns or now(), None
        try:
            end.synchronize()
        except FAILURES as error:
            failure = error
        note(start, end.happened_ns or now(), failure)
        with suppress(*FAILURES):
            begin.close()
            end.close()
        del job, begin, end, note  # nothing is kept until the next one comes


_MOST_NODES = 8
"""Nodes of a segment that an event names."""
_MOST_FORMS = 64
"""Sets of shapes of one segment whose facts are shared by runs."""
_Form = tuple[Any, tuple[int, ...] | None, int]
"""Of a value: data type, or what it is if it is no array; shape; bytes."""
_Outputs = TypeVar("_Outputs", bound=Sequence[Any] | None)
_Run = Callable[..., Any]


def traced_run(trace: Trace, device: str, run: _Run, profile: SessionProfile | None) -> _Run:
    """Return a run of ONNX Runtime's over a whole model, by a feed or by a binding, as a step."""
    steps = _Steps(trace, device, segment_name(), segment_facts())

    def traced(*arguments: Any) -> Any:
        feed = next((argument for argument in arguments if isinstance(argument, Mapping)), {})
        results = steps.done(list(feed.values()), lambda: run(*arguments) or ())
        if profile is not None:
            profile.ran()
        return results

    return traced


def traced_pools(trace: Trace, threading: Threading, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
    """Return what makes pools of programs of one segment, whose computations are events.

    For the lock of a device that does one thing at a time they then wait themselves, which is an event, too.
    """
    device = calls.device
    lock = device_lock(device) if threading is Threading.SERIAL else None
    steps = _Steps(trace, device, segment_name(*calls.about), segment_facts(*calls.about))
    traced_threading = Threading.EXCLUSIVE if lock is not None else threading
    return lambda program: ExecutionPool(_TracedProgram(program, steps, lock), traced_threading, calls)


def driver_program(program: Program) -> Program:
    """Return the driver's own program that a traced one, or that of a step with the same, stands around."""
    program = program.traced if isinstance(program, _TracedProgram) else program
    return program.of if isinstance(program, SameProgram) else program


def traced_transfers(trace: Trace) -> Callable[[], list[Transfer]]:
    """Return what makes a list for the transfers of a run, which are events."""
    return partial(_TracedTransfers, trace)


class _TracedTransfers(list[Transfer]):
    """Transfers of one run, each an event."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def append(self, transfer: Transfer) -> None:
        """Note one that is over."""
        super().append(transfer)
        start = self._trace.timestamp() - round(transfer.seconds * 1e9)
        self._trace.transfer(transfer.source, transfer.target, transfer.nbytes, start, value=transfer.value)


class _Steps:
    """Makes events of the computations of one segment. Those of the same shapes share their facts."""

    def __init__(self, trace: Trace, device: str, name: str, facts: Mapping[str, Any]) -> None:
        self.trace, self.device, self._name, self._facts = trace, device, name, facts
        self._known: dict[object, Mapping[str, Any]] = {}
        self.watchers = Watchers(trace.timestamp)
        """See what streams do."""

    def done(self, inputs: Sequence[Any], compute: Callable[[], _Outputs]) -> _Outputs:
        """What `compute` gives, and an event for it, unless it gives None: nothing was done. An error is a fact."""
        start = self.trace.timestamp()
        try:
            outputs = compute()
        except BaseException as error:
            self._note(start, {**self._facts_of(inputs, ()), "error": describe(error)})
            raise
        if outputs is not None:
            self._note(start, self._facts_of(inputs, outputs))
        return outputs

    def enqueued(
        self, inputs: Sequence[Any], stream: Stream, enqueue: Callable[[], Sequence[Any] | None]
    ) -> Sequence[Any] | None:
        """What `enqueue` gives; the event is made when the work is done, unless there is none."""

        def noting(outputs: Sequence[Any]) -> Note:
            facts = self._facts_of(inputs, outputs)
            return lambda start, end, failure: self._note(start, _with_failure(facts, failure), end)

        return self.watchers.enqueued(open_device(self.device), stream, enqueue, noting)

    def _note(self, start: int, facts: Mapping[str, Any], end: int | None = None) -> None:
        self.trace.add(self.device, STEP, self._name, start, facts, end)

    def _facts_of(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Mapping[str, Any]:
        forms = tuple(map(_form, inputs)), tuple(map(_form, outputs))
        known = self._known.get(forms)
        if known is not None:
            return known
        facts = dict(self._facts)
        for direction, values in zip(("input", "output"), forms, strict=True):
            facts[f"{direction}s"] = list(map(_words, values))
            facts[f"{direction}_bytes"] = sum(nbytes for _, _, nbytes in values)
        if len(self._known) < _MOST_FORMS:
            self._known[forms] = facts
        return facts


class _TracedProgram(Program):
    """A program whose executions are traced."""

    def __init__(self, program: Program, steps: _Steps, lock: Lock | None) -> None:
        self._program, self._steps, self._lock = program, steps, lock

    @property
    def traced(self) -> Program:
        """The driver's own."""
        return self._program

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`."""
        return self._program.memory_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self._program.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return self._program.shared_bytes

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        with self._steps.trace.span(self._steps.device, COMPILE, "create execution"):
            execution = create_execution(self._program)
        return _TracedExecution(execution, self._steps, self._lock)

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        return self._program.serialize()

    def close(self) -> None:
        """See `Program.close`."""
        self._program.close()


class _TracedExecution(Execution):
    """An execution whose computations are events."""

    def __init__(
        self, execution: Execution, steps: _Steps, lock: Lock | None, sizes: Sequence[Any] | None = None
    ) -> None:
        self._execution, self._steps, self._lock, self._sizes = execution, steps, lock, sizes

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self._done(inputs, lambda execution: execution.compute(inputs))

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`."""
        return self._done(inputs, lambda execution: execution.compute_within(inputs, control))

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`."""
        return self._done(inputs, lambda execution: execution.compute_into(inputs, outputs))

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        return self._done(inputs, lambda execution: execution.compute_on_device(inputs, control))

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`."""
        execution = self._told()
        return self._steps.enqueued(inputs, stream, lambda: execution.enqueue(inputs, stream, control))

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.specialize`; applied when it computes, since only then it has the device to itself."""
        return _TracedExecution(self._execution, self._steps, self._lock, sizes)

    def _done(self, inputs: Sequence[Any], compute: Callable[[Execution], _Outputs]) -> _Outputs:
        if self._lock is None:
            return self._steps.done(inputs, lambda: compute(self._told()))
        trace, asked, has_to_wait = self._steps.trace, self._steps.trace.timestamp(), self._lock.locked()
        with self._lock:
            if has_to_wait:
                trace.add(self._steps.device, WAIT, "wait for the device", asked, {})
            return self._steps.done(inputs, lambda: compute(self._told()))

    def _told(self) -> Execution:
        return self._execution if self._sizes is None else self._execution.specialize(self._sizes)

    def close(self) -> None:
        """See `Execution.close`; what is watched is noted before."""
        self._steps.watchers.finish()
        self._execution.close()


def _with_failure(facts: Mapping[str, Any], failure: BaseException | None) -> Mapping[str, Any]:
    return facts if failure is None else {**facts, "error": describe(failure)}


def segment_name(segment: int | None = None, nodes: Sequence[str] = ()) -> str:
    """How events call a segment, or the model where it is none."""
    if segment is None:
        return "the model"
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"segment {segment}: {nodes[0]}{more}" if nodes else f"segment {segment}"


def segment_facts(segment: int | None = None, nodes: Sequence[str] = ()) -> Mapping[str, Any]:
    """What events say of a segment."""
    if segment is None:
        return {}
    return {"segment": segment, "nodes": list(nodes[:_MOST_NODES]), "node_count": len(nodes)}


def _form(value: Any) -> _Form:
    if isinstance(value, (np.ndarray, DeviceTensor)):
        return value.dtype, value.shape, value.nbytes
    return type(value).__name__, None, 0


def _words(form: _Form) -> str:
    kind, shape, _ = form
    return str(kind) if shape is None else f"{kind}{list(shape)}"


_USUAL_NODES = 1_000
"""Nodes of a model that only ONNX Runtime can read."""


class HostTracing:
    """Trace of a model on ONNX Runtime alone: its loading, its own events, and every run as a step.

    Args:
        recorder: takes the events.
        source: of the model: path, contents, or model.
        session_options: ONNX Runtime's own.
    """

    def __init__(
        self,
        recorder: Recorder,
        source: str | os.PathLike[str] | bytes | onnx.ModelProto,
        session_options: onnxruntime.SessionOptions | None,
    ) -> None:
        from nnadapter.drivers.onnxruntime.sessions import new_session_options, profile_of

        self.recorder, self._source = recorder, source
        self.session_options = session_options or new_session_options()
        self._profile = profile_of(recorder, CPU)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Record the loading of the model in a block, with ONNX Runtime's profiling switched on."""
        from nnadapter.drivers.onnxruntime.sessions import options_lock, profiling

        with (
            self.recorder.span(CPU, COMPILE, "load the model"),
            options_lock,
            profiling(self.session_options, self._profile),
        ):
            yield

    def traced(self, run: _Run) -> _Run:
        """Return a run of ONNX Runtime that is recorded as a step."""
        return traced_run(self.recorder, CPU, run, self._profile)

    def begin(self, session: onnxruntime.InferenceSession) -> None:
        """Begin to read ONNX Runtime's own events of a loaded session."""
        if self._profile is not None:
            self._profile.nodes = _node_count(self._source)
            self._profile.begin(session)


def _node_count(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> int:
    from nnadapter.onnx.files import load_model

    try:
        return len(load_model(source, external_data=False).graph.node)
    except NNAdapterError:  # ONNX Runtime can read it all the same, in its own format
        return _USUAL_NODES
