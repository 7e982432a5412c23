"""Control of a run: termination, deadlines, and turns on devices.

Runs of one plan take turns: each device serves one run at a time, the earliest first. A run releases its device before
it waits for the next one, so there is no deadlock.

One thread per session watches deadlines; runs never wake it. A deadline's clock stops while a run waits for its turn.

A run that completes returns its results, even if late. Since runs may share run options, a run that can be stopped has
a copy, to which a thread copies the caller's `terminate` flag.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from math import inf
from threading import TIMEOUT_MAX, Lock, Thread
from typing import TYPE_CHECKING
from weakref import ReferenceType, finalize, ref

from nnadapter.drivers.interface import Control
from nnadapter.errors import CancelledError, DeadlineExceededError, InvalidOptionError
from nnadapter.process.resources import new_lock, register_after_fork
from nnadapter.traces.trace import SILENT, WAIT

if TYPE_CHECKING:
    import onnxruntime


_LOOK_SECONDS = 0.005


class Turns:
    """Turns of concurrent runs of one plan on its devices. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._busy_devices: set[str] = set()
        self._waiting: dict[str, list[tuple[int, Lock]]] = {}

    def take_free(self, device: str) -> bool:
        with self._lock:
            is_free = device not in self._busy_devices
            self._busy_devices.add(device)
            return is_free

    def take(self, device: str, number: int, is_over: Callable[[], bool]) -> bool:
        """Wait until a device is free and no earlier run waits for it, and reserve it for run `number`.

        Returns False if `is_over` became true first.
        """
        with self._lock:
            if device not in self._busy_devices:
                self._busy_devices.add(device)
                return True
            turn = Lock()
            turn.acquire()
            entry = number, turn
            heappush(self._waiting.setdefault(device, []), entry)
        while not turn.acquire(timeout=_LOOK_SECONDS):
            if is_over() and self._withdraw(device, entry):
                return False
        return True

    def _withdraw(self, device: str, entry: tuple[int, Lock]) -> bool:
        with self._lock:
            waiting = self._waiting[device]
            if entry not in waiting:
                return False
            waiting.remove(entry)
            heapify(waiting)
            return True

    def release(self, device: str) -> None:
        with self._lock:
            if waiting := self._waiting.get(device):
                heappop(waiting)[1].release()
            else:
                self._busy_devices.remove(device)


ENTRY = "nnadapter.deadline_s"
"""Run configuration entry with a run's deadline in seconds."""
OnDeadline = Callable[[], float | None]
"""Called at a run's deadline; returns a new deadline by `time.monotonic` if more time remains."""


def deadline_of(options: onnxruntime.RunOptions | None) -> float | None:
    """Return the deadline in run options, in seconds, if any."""
    try:
        text = None if options is None else options.get_run_config_entry(ENTRY)
    except RuntimeError:
        return None
    except AttributeError:
        raise TypeError(f"run options are an onnxruntime.RunOptions, got {type(options).__name__}") from None
    if text is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < inf:
            return seconds
    raise InvalidOptionError(f"entry {ENTRY!r} of run options must be a positive number of seconds, got {text!r}")


class Deadlines:
    """Deadlines of the runs of one session. All runs have the same time limit. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = new_lock()
        self._is_awake = False
        self._ends: dict[OnDeadline, float] = {}
        self._asleep = Lock()
        """Locked until `close`, or until this object is collected; then the watching thread ends."""
        self._asleep.acquire()
        finalize(self, _end_watch, self._asleep).atexit = False
        register_after_fork(self)

    def watch(self, on_deadline: OnDeadline) -> float:
        """Register a run; return its deadline by `time.monotonic`, when `on_deadline` is called."""
        end = self._ends[on_deadline] = time.monotonic() + self.seconds
        if not self._is_awake:
            self._wake()
        return end

    def forget(self, on_deadline: OnDeadline) -> None:
        self._ends.pop(on_deadline, None)

    def close(self) -> None:
        _end_watch(self._asleep)

    def after_fork(self) -> None:
        self._is_awake = False
        self._ends.clear()

    def _wake(self) -> None:
        with self._lock:
            if not self._is_awake:
                self._is_awake = True
                watching = Thread(
                    target=_watch_deadlines, args=(ref(self), self._asleep), name="nnadapter deadlines", daemon=True
                )
                watching.start()

    def _stop_late_runs(self) -> float | None:
        if not self._has_runs():
            return None
        current_time = time.monotonic()
        for on_deadline, end in list(self._ends.items()):
            if (
                end <= current_time
                and self._ends.pop(on_deadline, None) is not None
                and (later := on_deadline()) is not None
            ):
                self._ends[on_deadline] = (
                    later  # if its run ended this moment, it is notified once more and then forgotten
                )
        return max(0.0, min([end - current_time for end in list(self._ends.values())], default=self.seconds))

    def _has_runs(self) -> bool:
        if self._ends:
            return True
        with self._lock:
            # Cleared before the check: a new run sees False and starts a thread, or the check sees the run.
            self._is_awake = False
            self._is_awake = bool(self._ends)
            return self._is_awake


def _watch_deadlines(deadlines_ref: ReferenceType[Deadlines], asleep: Lock) -> None:
    while (deadlines := deadlines_ref()) is not None and (seconds := deadlines._stop_late_runs()) is not None:
        del deadlines
        if asleep.acquire(timeout=min(seconds, TIMEOUT_MAX)):
            return


def _end_watch(asleep: Lock) -> None:
    with suppress(RuntimeError):
        asleep.release()


_LEAST_SECONDS = 1e-9
"""Passed to a driver when no time remains, since 0 means no deadline."""
_LEAST_LEFT = 0.001
"""Least number of seconds until a waiting run is checked again."""


class RunControl:
    """Control of one run: stop, deadline, and turns on devices.

    `stop` takes no lock, so any thread and finalizers may call it. `has_holder` is True if a caller has a reference and
    may stop the run. Runs of a `Stream` share `turns`, in the order of `number`.
    """

    def __init__(self, turns: Turns | None = None, number: int = 0, *, has_holder: bool = False) -> None:
        self.trace = SILENT
        self._turns, self._number = turns, number
        self._device: str | None = None
        self.copies_options = False
        """True if steps on the CPU get a copy of the run options. The copy has no LoRA adapters."""
        self._stopped = False
        self._has_holder = has_holder
        self._caller_options: onnxruntime.RunOptions | None = None
        self._own_options: onnxruntime.RunOptions | None = None
        self._follower_lock: Lock | None = None
        self._deadlines: Deadlines | None = None
        self._own_deadlines: Deadlines | None = None
        self._end: float | None = None
        self._seconds_left: float | None = None
        """Seconds to the deadline while waiting for a turn."""

    def stop(self) -> None:
        """Stop the run before its next step, or during a step if the device can."""
        self._stopped = True
        self._terminate()

    def begin(self, options: onnxruntime.RunOptions | None, deadlines: Deadlines | None) -> onnxruntime.RunOptions:
        """Begin the run and start its deadline; return the run options for steps on the CPU.

        They are the caller's options, or a copy if anything else can stop the run.
        """
        self._caller_options = options
        seconds = deadline_of(options)
        if seconds is not None:
            deadlines = self._own_deadlines = Deadlines(seconds)
        if options is not None and deadlines is None and not self._has_holder and not self.copies_options:
            return options
        from nnadapter.drivers.onnxruntime.sessions import copied_run_options, new_run_options

        self._own_options = copied = new_run_options() if options is None else copied_run_options(options)
        if options is not None:
            self._follower_lock = Lock()
            self._follower_lock.acquire()
            Thread(
                target=_follow, args=(options, copied, self._follower_lock), name="nnadapter options", daemon=True
            ).start()
        if deadlines is not None:
            self._deadlines = deadlines
            self._end = deadlines.watch(self._on_deadline)
        if self._stopped:
            self._terminate()
        return copied

    def end(self) -> None:
        if self._deadlines is not None:
            self._deadlines.forget(self._on_deadline)
        if self._own_deadlines is not None:
            self._own_deadlines.close()
        self._release_device()
        self._caller_options = self._own_options = None
        following, self._follower_lock = self._follower_lock, None
        if following is not None:
            following.release()

    @property
    def is_over(self) -> bool:
        return (
            self._stopped
            or (self._end is not None and time.monotonic() >= self._end)
            or (self._caller_options is not None and bool(self._caller_options.terminate))
        )

    @property
    def takes_turns(self) -> bool:
        return self._turns is not None

    def before(self, device: str, *, shared: bool) -> None:
        """Wait for the turn on a device before the next step, if the plan has several devices (`shared`)."""
        if self._turns is None or not shared or device == self._device:
            return
        self._release_device()
        if self._turns.take_free(device) or self._wait_for_turn(self._turns, device):
            self._device = device

    def _wait_for_turn(self, turns: Turns, device: str) -> bool:
        """Wait with the deadline's clock stopped; return False if the run must stop."""
        wait_start = self.trace.timestamp()
        self._seconds_left = None if self._end is None else self._end - time.monotonic()
        try:
            return turns.take(device, self._number, lambda: self._stopped)
        finally:
            if self._seconds_left is not None:
                self._end = time.monotonic() + self._seconds_left
                self._seconds_left = None
            self.trace.add(device, WAIT, "wait for its turn", wait_start, {})

    def for_driver(self) -> Control:
        seconds_left = 0.0 if self._end is None else max(_LEAST_SECONDS, self._end - time.monotonic())
        return Control(deadline_seconds=seconds_left, cancelled=lambda: self.is_over)

    def error(self, ending: str, *, device: str, segment: int | None = None) -> CancelledError:
        """Return the error for a stopped run; `ending` is such as `the run ended while segment 0 ran`."""
        late = self._end is not None and time.monotonic() >= self._end and not self._stopped
        if late and self._deadlines is not None:
            seconds = self._deadlines.seconds
            more = "Options(deadline_s=...)" if self._own_deadlines is None else f"{ENTRY!r} of its run options"
            return DeadlineExceededError(
                f"{ending}, because it took longer than {seconds:g} s; allow more by {more}",
                device=device,
                segment=segment,
            )
        if self._stopped:
            return CancelledError(f"{ending}, because its caller stopped it", device=device, segment=segment)
        from nnadapter.drivers.onnxruntime.failures import TERMINATED

        text = f"{ending}, because its run options stopped it ({TERMINATED})"
        return CancelledError(text, device=device, segment=segment)

    def _on_deadline(self) -> float | None:
        """Stop the run at its deadline, or return a later deadline if it waited for its turn."""
        current_time, seconds_left, end = time.monotonic(), self._seconds_left, self._end
        if seconds_left is not None:
            return current_time + max(seconds_left, _LEAST_LEFT)
        if end is not None and end > current_time:
            return end
        self._terminate()
        return None

    def _terminate(self) -> None:
        own_options = self._own_options
        if own_options is not None:
            own_options.terminate = True

    def _release_device(self) -> None:
        device, self._device = self._device, None
        if device is not None and self._turns is not None:
            self._turns.release(device)


def _follow(callers: onnxruntime.RunOptions, own_options: onnxruntime.RunOptions, following: Lock) -> None:
    """Copy the caller's `terminate` flag to a run's own options during the run."""
    while not following.acquire(timeout=_LOOK_SECONDS):
        if callers.terminate:
            own_options.terminate = True
            return
