"""Programs and transfers that record their times in a trace.

On streams, an event is recorded before and after each step. A thread per stream waits for events and reads the clock,
unless the driver reports the times.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from nnadapter.engine.execution_pool import ExecutionPool, WrappedProgram
from nnadapter.errors import FAILURES, NNAdapterError, describe
from nnadapter.ir.operand import Array
from nnadapter.traces.trace import COMPILE, STEP, WAIT, Trace

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.traces.recorder import Recorder


Note = Callable[[int, int, BaseException | None], None]
"""Receives begin and end of work on the device, by the trace's clock, and an error or None."""
_Job = tuple[Event, Event, Note]


class Watcher:
    """Thread that waits for the events of one stream. Not thread-safe, like streams."""

    def __init__(self, stream: Stream, clock: Callable[[], int]) -> None:
        self._jobs: SimpleQueue[_Job | Lock | None] = SimpleQueue()
        Thread(target=_watch, args=(self._jobs, clock), name="nnadapter trace", daemon=True).start()
        weakref.finalize(stream, self._jobs.put, None)

    def put(self, begin: Event, end: Event, note: Note) -> None:
        """Queue the events before and after some work. Afterwards `note` is called and both events are closed."""
        self._jobs.put((begin, end, note))

    def finish(self) -> None:
        noted = Lock()
        noted.acquire()
        self._jobs.put(noted)
        noted.acquire()


class Watchers:
    """Watchers of the streams of one program."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._now = clock
        self._used: dict[Watcher, Stream] = {}

    def enqueued(
        self,
        device: Device,
        stream: Stream,
        enqueue: Callable[[], Sequence[Any] | None],
        noting: Callable[[Sequence[Any]], Note],
    ) -> Sequence[Any] | None:
        """Call `enqueue`, which puts work into a stream, and watch the work; return its outputs.

        `noting` returns the function to call when the work with these outputs is done.
        """
        begin, end = device.create_event(), device.create_event()
        stream.record(begin)
        outputs = enqueue()
        if outputs is None:
            return None
        stream.record(end)
        watcher = _watcher_of(stream, self._now)
        self._used[watcher] = stream  # keeps the stream alive: a watcher ends with its stream
        watcher.put(begin, end, noting(outputs))
        return outputs

    def finish(self) -> None:
        for watcher in self._used:
            watcher.finish()
        self._used.clear()


_watchers: weakref.WeakKeyDictionary[Stream, Watcher] = weakref.WeakKeyDictionary()
"""Watcher of each stream, shared by programs to keep the stream's events in order."""


def _watcher_of(stream: Stream, clock: Callable[[], int]) -> Watcher:
    watcher = _watchers.get(stream)
    if watcher is None:
        watcher = _watchers[stream] = Watcher(stream, clock)
    return watcher


def _watch(jobs: SimpleQueue[_Job | Lock | None], clock: Callable[[], int]) -> None:
    while (job := jobs.get()) is not None:
        if not isinstance(job, tuple):
            job.release()
            continue
        begin, end, note = job
        with suppress(*FAILURES):
            begin.synchronize()
        start, failure = begin.happened_ns or clock(), None
        try:
            end.synchronize()
        except FAILURES as error:
            failure = error
        note(start, end.happened_ns or clock(), failure)
        with suppress(*FAILURES):
            begin.close()
            end.close()
        del job, begin, end, note


_MOST_NODES = 8
_MOST_FORMS = 64
_Form = tuple[Any, tuple[int, ...] | None, int]
"""Dtype or type name, shape, and size in bytes of a value, for trace events."""
_Outputs = TypeVar("_Outputs", bound=Sequence[Any] | None)


def traced_pools(trace: Trace, threading: Threading, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
    """Return a factory of execution pools that record their computations.

    Pools of serial devices wait for the device lock themselves, to record the wait.
    """
    device = calls.device
    lock = device_lock(device) if threading is Threading.SERIAL else None
    steps = _Steps(trace, device, segment_name(*calls.about), segment_facts(*calls.about))
    traced_threading = Threading.EXCLUSIVE if lock is not None else threading
    return lambda program: ExecutionPool(_TracedProgram(program, steps, lock), traced_threading, calls)


def traced_transfers(trace: Trace) -> Callable[[], list[Transfer]]:
    """Return a factory of transfer lists that record every transfer."""
    return partial(_TracedTransfers, trace)


class _TracedTransfers(list[Transfer]):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def append(self, transfer: Transfer) -> None:
        super().append(transfer)
        start = self._trace.timestamp() - round(transfer.seconds * 1e9)
        self._trace.transfer(transfer.source, transfer.target, transfer.nbytes, start, value=transfer.value)


class _Steps:
    """Recorder of the computations of one segment, with cached facts about values."""

    def __init__(self, trace: Trace, device: str, name: str, facts: Mapping[str, Any]) -> None:
        self.trace, self.device, self._name, self._facts = trace, device, name, facts
        self._known: dict[object, Mapping[str, Any]] = {}
        self.watchers = Watchers(trace.timestamp)

    def record(self, inputs: Sequence[Any], compute: Callable[[], _Outputs]) -> _Outputs:
        """Return the result of `compute`, and record its time unless the result is None."""
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
        def noting(outputs: Sequence[Any]) -> Note:
            facts = self._facts_of(inputs, outputs)
            return lambda start, end, failure: self._note(start, _with_failure(facts, failure), end)

        return self.watchers.enqueued(open_device(self.device), stream, enqueue, noting)

    def _note(self, start: int, facts: Mapping[str, Any], end: int | None = None) -> None:
        self.trace.add(self.device, STEP, self._name, start, facts, end)

    def _facts_of(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Mapping[str, Any]:
        forms = tuple(map(_form, inputs)), tuple(map(_form, outputs))
        cached = self._known.get(forms)
        if cached is not None:
            return cached
        facts = dict(self._facts)
        for direction, values in zip(("input", "output"), forms, strict=True):
            facts[f"{direction}s"] = list(map(_words, values))
            facts[f"{direction}_bytes"] = sum(nbytes for _, _, nbytes in values)
        if len(self._known) < _MOST_FORMS:
            self._known[forms] = facts
        return facts


class _TracedProgram(WrappedProgram):
    def __init__(self, program: Program, steps: _Steps, lock: Lock | None) -> None:
        super().__init__(program)
        self._steps, self._lock = steps, lock

    def create_execution(self) -> Execution:
        with self._steps.trace.span(self._steps.device, COMPILE, "create execution"):
            execution = create_execution(self.inner)
        return _TracedExecution(execution, self._steps, self._lock)


class _TracedExecution(Execution):
    def __init__(
        self, execution: Execution, steps: _Steps, lock: Lock | None, sizes: Sequence[Any] | None = None
    ) -> None:
        self._execution, self._steps, self._lock, self._sizes = execution, steps, lock, sizes

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._record(inputs, lambda execution: execution.compute(inputs))

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        return self._record(inputs, lambda execution: execution.compute_within(inputs, control))

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        return self._record(inputs, lambda execution: execution.compute_into(inputs, outputs))

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        return self._record(inputs, lambda execution: execution.compute_on_device(inputs, control))

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        execution = self._sized_execution()
        return self._steps.enqueued(inputs, stream, lambda: execution.enqueue(inputs, stream, control))

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        """Return an execution for these sizes. It passes them to the driver later, within the device lock."""
        return _TracedExecution(self._execution, self._steps, self._lock, sizes)

    def _record(self, inputs: Sequence[Any], compute: Callable[[Execution], _Outputs]) -> _Outputs:
        if self._lock is None:
            return self._steps.record(inputs, lambda: compute(self._sized_execution()))
        trace, wait_start, has_to_wait = self._steps.trace, self._steps.trace.timestamp(), self._lock.locked()
        with self._lock:
            if has_to_wait:
                trace.add(self._steps.device, WAIT, "wait for the device", wait_start, {})
            return self._steps.record(inputs, lambda: compute(self._sized_execution()))

    def _sized_execution(self) -> Execution:
        return self._execution if self._sizes is None else self._execution.specialize(self._sizes)

    def close(self) -> None:
        self._steps.watchers.finish()
        self._execution.close()


def _with_failure(facts: Mapping[str, Any], failure: BaseException | None) -> Mapping[str, Any]:
    return facts if failure is None else {**facts, "error": describe(failure)}


def segment_name(segment: int | None = None, nodes: Sequence[str] = ()) -> str:
    """Return the name of a segment, or of the model, for trace events."""
    if segment is None:
        return "the model"
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"segment {segment}: {nodes[0]}{more}" if nodes else f"segment {segment}"


def segment_facts(segment: int | None = None, nodes: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return index, nodes and node count of a segment; empty for the entire model."""
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


class HostTracing:
    """Trace of a model on ONNX Runtime alone, with ONNX Runtime's events and every run as a step."""

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
        from nnadapter.drivers.onnxruntime.sessions import options_lock, profiling

        with (
            self.recorder.span(CPU, COMPILE, "load the model"),
            options_lock,
            profiling(self.session_options, self._profile),
        ):
            yield

    def traced(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return ONNX Runtime's run function `run`, with each call recorded as a step."""
        steps, profile = _Steps(self.recorder, CPU, segment_name(), segment_facts()), self._profile

        def traced(*arguments: Any) -> Any:
            feed = next((argument for argument in arguments if isinstance(argument, Mapping)), {})
            results = steps.record(list(feed.values()), lambda: run(*arguments) or ())
            if profile is not None:
                profile.ran()
            return results

        return traced

    def begin(self, session: onnxruntime.InferenceSession) -> None:
        if self._profile is not None:
            self._profile.nodes = _node_count(self._source)
            self._profile.begin(session)


def _node_count(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> int:
    from nnadapter.onnx.files import load_model

    try:
        return len(load_model(source, external_data=False).graph.node)
    except NNAdapterError:
        return _USUAL_NODES
