"""Threads that run steps of a device beside the run that began them: one for each device, in the order of the steps.

Locks and queues are C's, which no interrupt breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread

from nnadapter.running.provenance import StepRun

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
