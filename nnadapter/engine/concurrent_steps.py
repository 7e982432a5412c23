"""Runs with several steps in progress at once, by device streams or device threads.

Threads that run steps of a device beside the run that began them: one for each device, in the order of the steps.

Locks and queues are C's, which no interrupt breaks.

Runs that have several steps under way at once, and wait where it was planned: by streams, or by threads of devices.

A run is lent a `Flight`: a stream per device, and for every enqueued step an execution and an event, which nobody else
uses before all work is done. An enqueued step is *pending* until a wait has said that it is done. As long as one is, no
value of the run is let go, so nothing that a device reads or writes is freed. A run that an interrupt ended leaves its
values with its flight, and whoever gets that next waits for them first.

A wait that raises says that a pending step failed; the events of the steps say which. That one runs elsewhere, as one
that failed at once; what is pending behind it read what it did not make, and runs again, step by step.

Steps that run alongside do so in a thread of their device, as any step does, falling back included. They
work in memory that the run gives back at its end, so a run never ends before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from nnadapter.drivers.interface import DeviceTensor, Event, Execution, Stream
from nnadapter.drivers.registry import open_device
from nnadapter.engine.bound_steps import BoundStep
from nnadapter.engine.executor import OneRun, after_failure, ask_before, run_step
from nnadapter.engine.provenance import StepRun
from nnadapter.errors import FAILURES
from nnadapter.planning.overlap import Overlap
from nnadapter.process.resources import ObjectPool, close_all, register_after_fork
from nnadapter.traces.trace import WAIT, Trace

RunStep = Callable[[], StepRun]


class Job:
    """One step that is run elsewhere."""

    __slots__ = ("_claim", "device", "error", "result", "run_step", "under_way")

    def __init__(self, device: str, run_step: RunStep) -> None:
        self.device, self.run_step = device, run_step
        self.result: StepRun | None = None
        self.error: BaseException | None = None
        self.under_way = Lock()
        """Held until there is a result or an error."""
        self.under_way.acquire()
        self._claim: dict[str, str] = {}

    def do(self) -> None:
        """Run it, unless nobody wants it any more."""
        if self._claimed_by("lane") != "lane":
            return
        try:
            self.result = self.run_step()
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            self.error = error
        finally:
            self.under_way.release()

    def wait(self) -> StepRun:
        """Wait until it is done, and return what came of it, or raise what it raised."""
        with self.under_way:
            if self.error is not None:
                raise self.error
        assert self.result is not None, "it is done"
        return self.result

    def wait_out(self) -> None:
        """Wait until it is done, however often somebody interrupts; where it has not begun, it never will."""
        while self.under_way.locked():
            try:
                if self._claimed_by("waiter") == "waiter":
                    return
                with self.under_way:
                    return
            except KeyboardInterrupt:
                continue  # one is being raised already; the step works in memory that is about to be given back

    def _claimed_by(self, who: str) -> str:
        """Who was first to claim it; one step for the interpreter, which may be repeated after an interrupt."""
        return self._claim.setdefault("by", who)


class Lane:
    """A device's thread."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._jobs,), name=f"nnadapter {device}", daemon=True)
        self._thread.start()

    def job(self, run_step: RunStep) -> Job:
        """Return a step that is to be run as if in the caller's context; `submit` takes it when it is noted."""
        context = copy_context()
        return Job(self._device, lambda: context.run(run_step))

    def submit(self, job: Job) -> None:
        """Have a step run behind those before it."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait for its steps, and end it."""
        self._jobs.put(None)
        self._thread.join()

    def __del__(self) -> None:
        """Let the thread end."""
        self._jobs.put(None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.do()
        del job


@dataclass(eq=False, slots=True)
class Pending:
    """An enqueued step that nobody has waited for."""

    bound: BoundStep
    event: Event
    started: float
    seconds: float = 0.0
    """What the host took to enqueue it."""


class Flight:
    """What one run needs to have work under way. Everything stays with it until it is closed.

    Args:
        steps: those that are enqueued.
        devices: those that have a thread.
    """

    def __init__(self, steps: Sequence[BoundStep], devices: Iterable[str]) -> None:
        self.streams: dict[str, Stream] = {}
        """By device."""
        self.events: dict[int, Event] = {}
        """By segment."""
        self.executions: dict[int, Execution] = {}
        self.pending: list[Pending] = []
        """In the order in which they were enqueued."""
        self.values: list[Any] = []
        """Of the run that has work under way."""
        self.made: list[Sequence[DeviceTensor]] = []
        """What its enqueued steps make, whoever has got hold of it."""
        self.lanes: dict[str, Lane] = {}
        """By device."""
        self._pools = [bound.pool for bound in steps]
        try:
            for name in devices:
                self.lanes[name] = Lane(name)
            for bound in steps:
                device, segment = open_device(bound.step.device), bound.step.segment
                if bound.step.device not in self.streams:
                    self.streams[bound.step.device] = device.create_stream()
                self.events[segment] = device.create_event()
                self.executions[segment] = bound.pool.kept_by(self)
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait for what is under way, whatever becomes of it; then nothing of its run is held any more."""
        for device in dict.fromkeys(entry.bound.step.device for entry in self.pending):
            with suppress(*FAILURES):
                self.streams[device].synchronize()
        self.pending.clear()
        self.values, self.made = [], []

    def close(self) -> None:
        """Wait, free streams and events, and give the executions back."""
        self.settle()
        for pool in self._pools:
            pool.give_back(self)
        close_all([*self.streams.values(), *self.events.values(), *self.lanes.values()])


class Flights:
    """Runs the steps of one plan. Usable from many threads at once.

    Args:
        steps: of the plan.
        overlap: how they overlap; at least one is not waited for at once.
        trace: of the session, which hears of waits.
    """

    def __init__(self, steps: Sequence[BoundStep], overlap: Overlap, trace: Trace) -> None:
        self._overlap, self._trace = overlap, trace
        self._shares = len({bound.step.device for bound in steps}) > 1
        enqueued = [bound_step for bound_step in steps if bound_step.step.segment in overlap.enqueued_segments]
        devices = dict.fromkeys(
            bound_step.step.device for bound_step in steps if bound_step.step.segment in overlap.threaded_segments
        )
        self._flights = ObjectPool(lambda: Flight(enqueued, devices))
        self._parted: list[Flight] = []
        """Those of a process that this one was forked from: never used here, nor closed, which would wait for them."""
        register_after_fork(self)

    def run(self, steps: Sequence[BoundStep], run: OneRun) -> list[StepRun]:
        """See `StreamResults.run`."""
        user = object()
        try:
            flight = self._flights.acquire(user)
            flight.settle()
            flight.values = run.values
            running = _Run(flight, self._overlap, self._trace, run)
            try:
                runs = running.all(steps, shared=self._shares)
            except BaseException as error:
                running.wait_out()
                if isinstance(error, FAILURES):
                    flight.settle()
                raise
            flight.values, flight.made = [], []
            return runs
        finally:
            self._flights.users.pop(user, None)

    def after_fork(self) -> None:
        """In a process that was forked: the threads of streams and lanes are not there."""
        self._parted += self._flights.clear()
        self._flights.users.clear()

    def close(self) -> None:
        """See `StreamResults.close`."""
        close_all(self._flights.clear())


class _Run:
    """One run in a flight."""

    def __init__(self, flight: Flight, overlap: Overlap, trace: Trace, run: OneRun) -> None:
        self._flight, self._overlap, self._trace = flight, overlap, trace
        self._values, self._made, self._kept, self._control, self._sizes, self._given, self._holds = run
        self._runs: dict[int, StepRun] = {}
        self._jobs: dict[int, Job] = {}
        """By segment, what threads have to run, in its order."""
        self._released: list[int] = []
        """Slots that nobody reads any more, but perhaps what is pending."""

    def all(self, steps: Sequence[BoundStep], *, shared: bool) -> list[StepRun]:
        """Run every step."""
        for bound in steps:
            if self._control is not None:
                if self._control.takes_turns:  # a run that gives a device back has nothing under way there
                    self._wait_for_others(bound.step.device)
                ask_before(self._control, bound, shared=shared)
            for segment in self._overlap.awaited.get(bound.step.segment, ()):
                self._wait_for(segment)
            self._begin(bound)
            self._released.extend(bound.released)
            self._let_go()
        self._wait_for_all()
        return [self._runs[bound.step.segment] for bound in steps]

    def wait_out(self) -> None:
        """Wait until no thread has anything of the run, whatever became of it."""
        for job in self._jobs.values():
            job.wait_out()

    def _begin(self, bound: BoundStep) -> None:
        """Begin a step; most are done then."""
        segment, in_turn = bound.step.segment, self._control is not None and self._control.takes_turns
        if segment in self._overlap.threaded_segments and not in_turn:
            lane = self._flight.lanes[bound.step.device]
            job = self._jobs[segment] = lane.job(partial(self._run_of, bound))  # first: an interrupt may come any time
            lane.submit(job)
        elif segment not in self._overlap.enqueued_segments:
            self._run_now(bound)
        elif bound.health.is_troubled:  # perhaps only now: it was planned to be enqueued, with no wait before it
            self._wait_for_all()
            self._run_now(bound)
        elif not self._is_enqueued(bound):
            self._run_now(bound)

    def _run_now(self, bound: BoundStep) -> None:
        self._runs[bound.step.segment] = self._run_of(bound)

    def _run_of(self, bound: BoundStep) -> StepRun:
        told = self._sizes if bound.takes_sizes else None
        return run_step(bound, self._values, self._made, self._kept, self._control, told, self._given)

    def _is_enqueued(self, bound: BoundStep) -> bool:
        """Enqueue a step; where that cannot be, wait for what is pending, since the step is to run now."""
        assert bound.residence is not None and self._made is not None, "only such steps are enqueued"
        segment = bound.step.segment
        if bound.index_checks:
            self._wait_for_all()  # what they look at may be under way
            for index_check in bound.index_checks:
                index_check.check(self._values)
        entry = Pending(bound, self._flight.events[segment], time.perf_counter())
        self._flight.pending.append(entry)  # first: an interrupt may come at any time
        try:
            for planned_check in bound.planned:
                planned_check.check(self._values)
            enqueue = partial(self._enqueue, bound)
            results = bound.residence.compute(enqueue, self._values, self._made, self._kept, is_work_of_stream=True)
            if results is not None:
                for slot, result in zip(bound.outputs, results, strict=True):
                    self._values[slot] = result
                self._flight.streams[bound.step.device].record(entry.event)
                entry.seconds = time.perf_counter() - entry.started
                return True
        except FAILURES as error:
            self._flight.pending.remove(entry)
            self._wait_for_all()
            with suppress(*FAILURES):
                self._flight.streams[bound.step.device].synchronize()  # where what it made is not what was expected
            self._runs[segment] = self._after_failure(bound, error, entry.started)
            return True
        self._flight.pending.remove(entry)
        self._wait_for_all()
        return False

    def _after_failure(self, bound: BoundStep, error: BaseException, started: float) -> StepRun:
        told = self._sizes if bound.takes_sizes else None
        return after_failure(bound, error, self._values, self._control, told, self._given, started)

    def _enqueue(self, bound: BoundStep, tensors: Sequence[DeviceTensor]) -> Sequence[DeviceTensor] | None:
        if bound.residence is not None and not bound.residence.enqueues:
            return None
        told = self._sizes if bound.takes_sizes else None
        execution = self._flight.executions[bound.step.segment]
        stream = self._flight.streams[bound.step.device]
        made = bound.pool.enqueue(execution, tensors, stream, self._control, told)
        if made is not None:
            self._flight.made.append(made)
        return made

    def _wait_for(self, segment: int) -> None:
        """Wait for one step, and with it for those before it in its stream or thread."""
        job = self._jobs.get(segment)
        if job is not None:
            self._wait_for_job(segment, job)
            return
        entry = next((pending for pending in self._flight.pending if pending.bound.step.segment == segment), None)
        if entry is not None:
            self._wait(entry, entry.event)

    def _wait_for_others(self, device: str) -> None:
        """Wait for all that is pending on other devices."""
        lasts = {entry.bound.step.device: entry for entry in self._flight.pending}
        for other, last in lasts.items():
            if other != device:
                self._wait(last, self._flight.streams[other])

    def _wait_for_all(self) -> None:
        self._wait_for_others("")
        while self._jobs:
            self._wait_for_job(*next(reversed(self._jobs.items())))

    def _wait_for_job(self, segment: int, job: Job) -> None:
        asked = self._trace.timestamp()
        try:
            self._runs[segment] = job.wait()
        finally:
            self._trace.add(job.device, WAIT, f"wait for segment {segment}", asked, {})
        done = [
            job_segment
            for job_segment, other in self._jobs.items()
            if other.device == job.device and job_segment <= segment
        ]
        for job_segment in done:
            self._runs[job_segment] = self._jobs[job_segment].wait()
        for job_segment in done:
            del self._jobs[job_segment]
        self._let_go()

    def _wait(self, last: Pending, point: Event | Stream) -> None:
        """Wait for a step and those before it in its stream; what failed is run elsewhere."""
        started, asked, device = time.perf_counter(), self._trace.timestamp(), last.bound.step.device
        try:
            point.synchronize()
        except FAILURES as error:
            self._run_again(device, error)
            return
        finally:
            self._trace.add(device, WAIT, f"wait for segment {last.bound.step.segment}", asked, {})
        last.seconds += time.perf_counter() - started
        pending = self._flight.pending
        for entry in pending[: pending.index(last) + 1]:
            if entry.bound.step.device == device:
                self._done(entry)
        self._let_go()

    def _done(self, entry: Pending) -> None:
        bound = entry.bound
        bound.seconds = entry.seconds
        self._flight.pending.remove(entry)
        self._runs[bound.step.segment] = StepRun(bound.step.segment, bound.step.device, entry.seconds, "")

    def _run_again(self, device: str, error: BaseException) -> None:
        """A step that is pending on a device failed: it runs elsewhere, those behind it once more."""
        entries = [pending for pending in self._flight.pending if pending.bound.step.device == device]
        failed, error = _first_failure(entries, error)
        with suppress(*FAILURES):
            self._flight.streams[device].synchronize()  # nothing is under way there, and the stream forgets
        for entry in entries[:failed]:
            self._done(entry)
        for entry in entries[failed:]:
            self._flight.pending.remove(entry)
        first = entries[failed].bound
        self._runs[first.step.segment] = self._after_failure(first, error, entries[failed].started)
        for entry in entries[failed + 1 :]:
            self._run_now(entry.bound)
        self._let_go()

    def _let_go(self) -> None:
        """Let go of what nobody reads any more."""
        if self._flight.pending or self._jobs:
            return
        for slot in () if self._holds else self._released:
            self._values[slot] = None
        self._released.clear()
        self._flight.made.clear()


def _first_failure(entries: Sequence[Pending], error: BaseException) -> tuple[int, BaseException]:
    """Which of some steps in a row failed, and how; the first where no event says so."""
    for position, entry in enumerate(entries):
        try:
            entry.event.synchronize()
        except FAILURES as own:
            return position, own
    return 0, error
