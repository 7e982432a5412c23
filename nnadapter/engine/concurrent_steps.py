"""Runs with several steps in flight at once, on device streams or in device threads.

A run has exclusive use of a `Flight` until all work is done. While an enqueued step is *pending* (not confirmed by a
wait), no value is released, so memory in use by a device is never freed. After an interrupt the flight keeps the
values, and its next run waits first.

If a wait raises, events show the failed step, which runs on its substitute. Later pending steps of the device run
again, since their inputs are missing.

A run never ends before its threaded steps, since the end of a run releases the steps' memory. Locks and queues are
implemented in C, so no interrupt breaks them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from nnadapter.drivers.interface import DeviceTensor, Event, Execution, Stream
from nnadapter.drivers.registry import open_device
from nnadapter.engine.bound_steps import BoundStep
from nnadapter.engine.executor import RunState, after_failure, ask_before, run_step
from nnadapter.engine.provenance import StepRun
from nnadapter.errors import FAILURES
from nnadapter.planning.overlap import Overlap
from nnadapter.process.resources import ObjectPool, close_all, register_after_fork
from nnadapter.records import dataclass
from nnadapter.traces.trace import WAIT, Trace

RunStep = Callable[[], StepRun]


class Job:
    """Step that runs in a device thread."""

    __slots__ = ("_claim", "device", "error", "result", "run_step", "under_way")

    def __init__(self, device: str, run_step: RunStep) -> None:
        self.device, self.run_step = device, run_step
        self.result: StepRun | None = None
        self.error: BaseException | None = None
        self.under_way = Lock()
        self.under_way.acquire()
        self._claim: dict[str, str] = {}

    def do(self) -> None:
        if self._claimed_by("lane") != "lane":
            return
        try:
            self.result = self.run_step()
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            self.error = error
        finally:
            self.under_way.release()

    def wait(self) -> StepRun:
        with self.under_way:
            if self.error is not None:
                raise self.error
        assert self.result is not None, "it is done"
        return self.result

    def wait_out(self) -> None:
        """Wait until the step is done, even after interrupts; prevent it if it has not begun."""
        while self.under_way.locked():
            try:
                if self._claimed_by("waiter") == "waiter":
                    return
                with self.under_way:
                    return
            except KeyboardInterrupt:
                continue  # An interrupt is already being raised; the step uses memory that is about to be released.

    def _claimed_by(self, who: str) -> str:
        """Claim the step for `lane`, which runs it, or `waiter`, which cancels it; return the first claimant.

        `setdefault` is atomic, so a repetition after an interrupt is harmless.
        """
        return self._claim.setdefault("by", who)


class Lane:
    """Thread of a device that runs steps in order."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._jobs,), name=f"nnadapter {device}", daemon=True)
        self._thread.start()

    def job(self, run_step: RunStep) -> Job:
        """Return a job that runs a step with the caller's context variables. Store the job, then call `submit`."""
        context = copy_context()
        return Job(self._device, lambda: context.run(run_step))

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def __del__(self) -> None:
        self._jobs.put(None)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.do()
        del job


@dataclass(eq=False, slots=True)
class Pending:
    """Enqueued step that no wait has confirmed yet."""

    bound: BoundStep
    event: Event
    started: float
    seconds: float = 0.0


class Flight:
    """Streams, events, executions and threads of a run with overlapping steps; reused by later runs."""

    def __init__(self, steps: Sequence[BoundStep], devices: Iterable[str]) -> None:
        self.streams: dict[str, Stream] = {}
        self.events: dict[int, Event] = {}
        self.executions: dict[int, Execution] = {}
        self.pending: list[Pending] = []
        self.values: list[Any] = []
        self.made: list[Sequence[DeviceTensor]] = []
        """Outputs that a device may still write, stored here so that an interrupt does not free them."""
        self.lanes: dict[str, Lane] = {}
        self._pools = [bound.pool for bound in steps]
        try:
            for name in devices:
                self.lanes[name] = Lane(name)
            for bound in steps:
                device, segment = open_device(bound.step.device), bound.step.segment
                if bound.step.device not in self.streams:
                    self.streams[bound.step.device] = device.create_stream()
                self.events[segment] = device.create_event()
                self.executions[segment] = bound.pool.reserve(self)
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Wait for all steps in flight, ignoring errors, and release their run's values."""
        for device in dict.fromkeys(entry.bound.step.device for entry in self.pending):
            with suppress(*FAILURES):
                self.streams[device].synchronize()
        self.pending.clear()
        self.values, self.made = [], []

    def close(self) -> None:
        self.settle()
        for pool in self._pools:
            pool.release(self)
        close_all([*self.streams.values(), *self.events.values(), *self.lanes.values()])


class Flights:
    """Runner of the overlapping steps of one plan. Thread-safe."""

    def __init__(self, steps: Sequence[BoundStep], overlap: Overlap, trace: Trace) -> None:
        self._overlap, self._trace = overlap, trace
        self._shares = len({bound.step.device for bound in steps}) > 1
        enqueued = [bound_step for bound_step in steps if bound_step.step.segment in overlap.enqueued_segments]
        devices = dict.fromkeys(
            bound_step.step.device for bound_step in steps if bound_step.step.segment in overlap.threaded_segments
        )
        self._flights = ObjectPool(lambda: Flight(enqueued, devices))
        self._inherited: list[Flight] = []
        """Flights of the parent process after a fork, unused because their threads were not forked."""
        register_after_fork(self)

    def run(self, steps: Sequence[BoundStep], run: RunState) -> list[StepRun]:
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
        self._inherited += self._flights.clear()
        self._flights.users.clear()

    def close(self) -> None:
        close_all(self._flights.clear())


class _Run:
    def __init__(self, flight: Flight, overlap: Overlap, trace: Trace, run: RunState) -> None:
        self._flight, self._overlap, self._trace = flight, overlap, trace
        self._run, self._values, self._control = run, run.values, run.control
        self._runs: dict[int, StepRun] = {}
        self._jobs: dict[int, Job] = {}
        self._released: list[int] = []

    def all(self, steps: Sequence[BoundStep], *, shared: bool) -> list[StepRun]:
        for bound in steps:
            if self._control is not None:
                if self._control.takes_turns:  # a device must be idle when its turn is released
                    self._wait_for_others(bound.step.device)
                ask_before(self._control, bound, shared=shared)
            for segment in self._overlap.awaited.get(bound.step.segment, ()):
                self._wait_for(segment)
            self._begin(bound)
            self._released.extend(bound.released)
            self._release_values()
        self._wait_for_all()
        return [self._runs[bound.step.segment] for bound in steps]

    def wait_out(self) -> None:
        for job in self._jobs.values():
            job.wait_out()

    def _begin(self, bound: BoundStep) -> None:
        segment, in_turn = bound.step.segment, self._control is not None and self._control.takes_turns
        if segment in self._overlap.threaded_segments and not in_turn:
            lane = self._flight.lanes[bound.step.device]
            # stored before submit: an interrupt may come at any time
            job = self._jobs[segment] = lane.job(partial(run_step, bound, self._run))
            lane.submit(job)
        elif segment not in self._overlap.enqueued_segments:
            self._run_now(bound)
        elif bound.health.is_troubled:
            self._wait_for_all()
            self._run_now(bound)
        elif not self._is_enqueued(bound):
            self._run_now(bound)

    def _run_now(self, bound: BoundStep) -> None:
        self._runs[bound.step.segment] = run_step(bound, self._run)

    def _is_enqueued(self, bound: BoundStep) -> bool:
        """Enqueue a step; if that is impossible, wait for pending steps and return False."""
        transfers = self._run.transfers
        assert bound.residence is not None and transfers is not None, "only such steps are enqueued"
        segment = bound.step.segment
        if bound.index_checks:
            self._wait_for_all()
            for index_check in bound.index_checks:
                index_check.check(self._values)
        entry = Pending(bound, self._flight.events[segment], time.perf_counter())
        self._flight.pending.append(entry)  # stored first: an interrupt may come at any time
        try:
            for planned_check in bound.planned:
                planned_check.check(self._values)
            enqueue = partial(self._enqueue, bound)
            results = bound.residence.compute(
                enqueue, self._values, transfers, self._run.out_devices, is_work_of_stream=True
            )
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
                # in case its outputs were rejected while it is in flight
                self._flight.streams[bound.step.device].synchronize()
            self._runs[segment] = after_failure(bound, error, self._run, entry.started)
            return True
        self._flight.pending.remove(entry)
        self._wait_for_all()
        return False

    def _enqueue(self, bound: BoundStep, tensors: Sequence[DeviceTensor]) -> Sequence[DeviceTensor] | None:
        if bound.residence is not None and not bound.residence.can_enqueue:
            return None
        program_sizes = self._run.sizes if bound.takes_sizes else None
        execution = self._flight.executions[bound.step.segment]
        stream = self._flight.streams[bound.step.device]
        results = bound.pool.enqueue(execution, tensors, stream, self._control, program_sizes)
        if results is not None:
            self._flight.made.append(results)
        return results

    def _wait_for(self, segment: int) -> None:
        job = self._jobs.get(segment)
        if job is not None:
            self._wait_for_job(segment, job)
            return
        entry = next((pending for pending in self._flight.pending if pending.bound.step.segment == segment), None)
        if entry is not None:
            self._wait(entry, entry.event)

    def _wait_for_others(self, device: str) -> None:
        lasts = {entry.bound.step.device: entry for entry in self._flight.pending}
        for other, last in lasts.items():
            if other != device:
                self._wait(last, self._flight.streams[other])

    def _wait_for_all(self) -> None:
        self._wait_for_others("")
        while self._jobs:
            self._wait_for_job(*next(reversed(self._jobs.items())))

    def _wait_for_job(self, segment: int, job: Job) -> None:
        wait_start = self._trace.timestamp()
        try:
            self._runs[segment] = job.wait()
        finally:
            self._trace.add(job.device, WAIT, f"wait for segment {segment}", wait_start, {})
        completed = [
            job_segment
            for job_segment, other in self._jobs.items()
            if other.device == job.device and job_segment <= segment
        ]
        for job_segment in completed:
            self._runs[job_segment] = self._jobs[job_segment].wait()
        for job_segment in completed:
            del self._jobs[job_segment]
        self._release_values()

    def _wait(self, last: Pending, point: Event | Stream) -> None:
        """Wait for `point` (the event or stream of the step `last`), and record earlier steps of the stream as done."""
        started, wait_start, device = time.perf_counter(), self._trace.timestamp(), last.bound.step.device
        try:
            point.synchronize()
        except FAILURES as error:
            self._run_again(device, error)
            return
        finally:
            self._trace.add(device, WAIT, f"wait for segment {last.bound.step.segment}", wait_start, {})
        last.seconds += time.perf_counter() - started
        pending = self._flight.pending
        for entry in pending[: pending.index(last) + 1]:
            if entry.bound.step.device == device:
                self._complete(entry)
        self._release_values()

    def _complete(self, entry: Pending) -> None:
        bound = entry.bound
        bound.seconds = entry.seconds
        self._flight.pending.remove(entry)
        self._runs[bound.step.segment] = StepRun(bound.step.segment, bound.step.device, entry.seconds, "")

    def _run_again(self, device: str, error: BaseException) -> None:
        entries = [pending for pending in self._flight.pending if pending.bound.step.device == device]
        failed, error = _first_failure(entries, error)
        with suppress(*FAILURES):
            self._flight.streams[device].synchronize()  # nothing is in flight there, and the stream drops its error
        for entry in entries[:failed]:
            self._complete(entry)
        for entry in entries[failed:]:
            self._flight.pending.remove(entry)
        first = entries[failed].bound
        self._runs[first.step.segment] = after_failure(first, error, self._run, entries[failed].started)
        for entry in entries[failed + 1 :]:
            self._run_now(entry.bound)
        self._release_values()

    def _release_values(self) -> None:
        if self._flight.pending or self._jobs:
            return
        for slot in () if self._run.keeps_values else self._released:
            self._values[slot] = None
        self._released.clear()
        self._flight.made.clear()


def _first_failure(entries: Sequence[Pending], error: BaseException) -> tuple[int, BaseException]:
    for position, entry in enumerate(entries):
        try:
            entry.event.synchronize()
        except FAILURES as own:
            return position, own
    return 0, error
