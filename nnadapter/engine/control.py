"""Control of a run: termination, deadlines, and turns on devices.

Whose turn it is on each device, where several runs of one plan follow each other: one run at a time, earliest first.

Each device then works on another input, and never on two at once, which would only take its memory and its caches
twice. A run that waits for a device has given back the one before, so none waits for a run that waits for it.

Runs that have to be done by some time, and the thread that tells them when it is over.

All runs of a session have the same time, so whoever comes later has to be done later: the thread sleeps to the first
end, or as long as a run that has not come yet would have. Nobody wakes it, so a run pays two steps in a dictionary. It
ends where nobody ran for so long. A run whose clock stood still meanwhile says so when it is told.

What stands over one run: who may stop it, until when it has to be done, and whose turn it is on a device.

Most runs have nothing of the kind, and no control: nothing is looked at between their steps.

A run stops before its next step, and in the middle of one where the device can: ONNX Runtime is told by its run
options, a driver asks the `Control` that it is given. The run then raises what was asked for, whatever the driver
raised. A run that came to its end gives its results, however late.

The clock of a deadline stands still while a run waits for its turn: in a stream, a run has as long as it has alone.

Run options may be shared by many runs, so what stops one of them is written into options of its own, and a thread
looks whether the caller's say the same.
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
"""How often one that waits asks whether it still wants to."""


class Turns:
    """The devices of some runs that follow each other."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._taken: set[str] = set()
        self._waiting: dict[str, list[tuple[int, Lock]]] = {}

    def take_free(self, device: str) -> bool:
        """Take the device if nobody has it."""
        with self._lock:
            is_free = device not in self._taken
            self._taken.add(device)
            return is_free

    def take(self, device: str, number: int, is_over: Callable[[], bool]) -> bool:
        """Wait until the device is free, and no run with a lower number waits for it; then it is taken.

        Args:
            device: which.
            number: of the run; no other has it.
            is_over: the run does not want the device any more.

        Returns:
            It is taken; not so where `is_over` came first.
        """
        with self._lock:
            if device not in self._taken:
                self._taken.add(device)
                return True
            turn = Lock()
            turn.acquire()
            entry = number, turn
            heappush(self._waiting.setdefault(device, []), entry)
        while not turn.acquire(timeout=_LOOK_SECONDS):
            if is_over() and self._withdrawn(device, entry):
                return False
        return True

    def _withdrawn(self, device: str, entry: tuple[int, Lock]) -> bool:
        """It waits no longer; not so where its turn has come meanwhile."""
        with self._lock:
            waiting = self._waiting[device]
            if entry not in waiting:
                return False
            waiting.remove(entry)
            heapify(waiting)
            return True

    def give_back(self, device: str) -> None:
        """Give a device that was taken to who waits for it."""
        with self._lock:
            if waiting := self._waiting.get(device):
                heappop(waiting)[1].release()
            else:
                self._taken.remove(device)


ENTRY = "nnadapter.deadline_s"
"""Of run options: seconds that this run may take, in place of what its session says."""
Tell = Callable[[], float | None]
"""Told that the time is over. Returns when it is to be told instead, by `monotonic`, if it has more time."""


def deadline_of(options: onnxruntime.RunOptions | None) -> float | None:
    """Return the seconds that run options give a run; None where they say nothing of it.

    Raises:
        InvalidOptionError: they are no seconds.
        TypeError: they are no run options.
    """
    try:
        said = None if options is None else options.get_run_config_entry(ENTRY)
    except RuntimeError:  # there is no such entry
        return None
    except AttributeError:
        raise TypeError(f"run options are an onnxruntime.RunOptions, got {type(options).__name__}") from None
    if said is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(said)) < inf:
            return seconds
    raise InvalidOptionError(f"entry {ENTRY!r} of run options is a number of seconds above 0, got {said!r}")


class Deadlines:
    """The runs of one session. Usable from many threads.

    Args:
        seconds: that a run may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = new_lock()
        self._is_awake = False
        self._ends: dict[Tell, float] = {}
        self._asleep = Lock()
        """Held until there is nothing to watch over any more; then whoever watches takes it."""
        self._asleep.acquire()
        finalize(self, _let_go, self._asleep).atexit = False
        register_after_fork(self)

    def watch(self, tell: Tell) -> float:
        """Have `tell` called when the time is over, from another thread, and return when that is by `monotonic`.

        Who watched calls `forget`, or is told.
        """
        end = self._ends[tell] = time.monotonic() + self.seconds
        if not self._is_awake:
            self._wake()
        return end

    def forget(self, tell: Tell) -> None:
        """The run is done."""
        self._ends.pop(tell, None)

    def close(self) -> None:
        """Nobody comes any more. May be called again."""
        _let_go(self._asleep)

    def after_fork(self) -> None:
        """In a process that was forked: neither the thread nor the runs are there."""
        self._is_awake = False
        self._ends.clear()

    def _wake(self) -> None:
        with self._lock:
            if not self._is_awake:
                self._is_awake = True
                watching = Thread(target=_look, args=(ref(self), self._asleep), name="nnadapter deadlines", daemon=True)
                watching.start()

    def _tell(self) -> float | None:
        """Tell those whose time is over; return seconds to the next end, None where nobody ran for so long."""
        if not self._goes_on():
            return None
        now = time.monotonic()
        for tell, end in list(self._ends.items()):
            if end <= now and self._ends.pop(tell, None) is not None and (later := tell()) is not None:
                self._ends[tell] = later  # if its run ended this moment, it is told once, and forgotten
        return max(0.0, min([end - now for end in list(self._ends.values())], default=self.seconds))

    def _goes_on(self) -> bool:
        if self._ends:
            return True
        with self._lock:
            # Before it is looked again: who comes meanwhile sees it, or is seen.
            self._is_awake = False
            self._is_awake = bool(self._ends)
            return self._is_awake


def _look(held: ReferenceType[Deadlines], asleep: Lock) -> None:
    """What the thread does; it keeps nothing alive, and ends with what it watches over."""
    while (deadlines := held()) is not None and (seconds := deadlines._tell()) is not None:
        del deadlines
        if asleep.acquire(timeout=min(seconds, TIMEOUT_MAX)):
            return


def _let_go(asleep: Lock) -> None:
    with suppress(RuntimeError):  # somebody was first
        asleep.release()


_LEAST_SECONDS = 1e-9
"""What a driver is told where no time is left: 0 means that there is no deadline."""
_LEAST_LEFT = 0.001
"""Seconds between two looks at a run that waits for its turn with hardly any time left."""


class RunControl:
    """One run. `stop` may be called from any thread and from a finalizer: it takes no lock.

    Args:
        turns: of the runs that this one follows; None if devices are not shared out.
        number: of this run among them.
        is_held: somebody may call `stop`.
    """

    def __init__(self, turns: Turns | None = None, number: int = 0, *, is_held: bool = False) -> None:
        self.trace = SILENT
        """Hears of waits for a turn."""
        self._turns, self._number = turns, number
        self._device: str | None = None
        """Whose turn it has."""
        self.copies_options = False
        """CPU steps get a copy of the caller's run options, which has no adapters."""
        self._stopped = False
        self._is_held = is_held
        self._callers: onnxruntime.RunOptions | None = None
        """What the caller gave; never written to."""
        self._own: onnxruntime.RunOptions | None = None
        """Nobody else's; None where nobody but the caller stops the run."""
        self._following: Lock | None = None
        """Held as long as a thread looks at the caller's."""
        self._deadlines: Deadlines | None = None
        self._of_call: Deadlines | None = None
        """Of this run alone, where its run options say how long it may take."""
        self._end: float | None = None
        self._left: float | None = None
        """Seconds until the end, while the run waits for its turn."""

    def stop(self) -> None:
        """Have the run end before its next step, or earlier; nothing happens where it is over."""
        self._stopped = True
        self._tell()

    def begin(self, options: onnxruntime.RunOptions | None, deadlines: Deadlines | None) -> onnxruntime.RunOptions:
        """The run begins. Returns the options to run with: the caller's, where nobody else stops the run.

        Raises:
            InvalidOptionError: a deadline in the options is none.
        """
        self._callers = options
        seconds = deadline_of(options)
        if seconds is not None:
            deadlines = self._of_call = Deadlines(seconds)
        if options is not None and deadlines is None and not self._is_held and not self.copies_options:
            return options
        from nnadapter.drivers.onnxruntime.sessions import copied_run_options, new_run_options  # most runs need none

        self._own = made = new_run_options() if options is None else copied_run_options(options)
        if options is not None:
            self._following = Lock()
            self._following.acquire()
            Thread(target=_follow, args=(options, made, self._following), name="nnadapter options", daemon=True).start()
        if deadlines is not None:
            self._deadlines = deadlines
            self._end = deadlines.watch(self._late)
        if self._stopped:
            self._tell()
        return made

    def end(self) -> None:
        """The run is over: what it holds is given back."""
        if self._deadlines is not None:
            self._deadlines.forget(self._late)
        if self._of_call is not None:
            self._of_call.close()
        self._give_back()
        self._callers = self._own = None
        following, self._following = self._following, None
        if following is not None:
            following.release()

    @property
    def is_over(self) -> bool:
        """It is to stop."""
        return (
            self._stopped
            or (self._end is not None and time.monotonic() >= self._end)
            or (self._callers is not None and bool(self._callers.terminate))
        )

    @property
    def takes_turns(self) -> bool:
        """It follows other runs, which get a device when it comes to the next one."""
        return self._turns is not None

    def before(self, device: str, *, shared: bool) -> None:
        """A step on a device comes next: wait for its turn where `shared`, the plan having several devices."""
        if self._turns is None or not shared or device == self._device:
            return
        self._give_back()
        if self._turns.take_free(device) or self._waited(self._turns, device):
            self._device = device

    def _waited(self, turns: Turns, device: str) -> bool:
        """Its turn on the device has come, and its clock stood still meanwhile; not so where it is to stop."""
        asked = self.trace.timestamp()
        self._left = None if self._end is None else self._end - time.monotonic()
        try:
            return turns.take(device, self._number, lambda: self._stopped)
        finally:
            if self._left is not None:
                self._end = time.monotonic() + self._left
                self._left = None
            self.trace.add(device, WAIT, "wait for its turn", asked, {})

    def for_driver(self) -> Control:
        """What a driver is given along with a computation."""
        left = 0.0 if self._end is None else max(_LEAST_SECONDS, self._end - time.monotonic())
        return Control(deadline_seconds=left, cancelled=self._is_over)

    def error(self, what: str, *, device: str, segment: int | None = None) -> CancelledError:
        """What a run that is to stop raises.

        Args:
            what: was under way, or next.
            device: where.
            segment: which, if it is one of several.
        """
        late = self._end is not None and time.monotonic() >= self._end and not self._stopped
        if late and self._deadlines is not None:
            seconds = self._deadlines.seconds
            more = "Options(deadline_s=...)" if self._of_call is None else f"{ENTRY!r} of its run options"
            return DeadlineExceededError(
                f"the run was not done within {seconds:g} s: {what}; give it more by {more}",
                device=device,
                segment=segment,
            )
        if self._stopped:
            return CancelledError(f"the run was stopped by who asked for it: {what}", device=device, segment=segment)
        from nnadapter.drivers.onnxruntime.failures import TERMINATED

        text = f"the run was stopped by its run options: {what} ({TERMINATED})"
        return CancelledError(text, device=device, segment=segment)

    def _is_over(self) -> bool:
        return self.is_over

    def _late(self) -> float | None:
        """The time is over, if the run has not waited meanwhile: then, when it is to be looked at again."""
        now, left, end = time.monotonic(), self._left, self._end
        if left is not None:
            return now + max(left, _LEAST_LEFT)
        if end is not None and end > now:
            return end
        self._tell()
        return None

    def _tell(self) -> None:
        own = self._own
        if own is not None:
            own.terminate = True

    def _give_back(self) -> None:
        device, self._device = self._device, None
        if device is not None and self._turns is not None:
            self._turns.give_back(device)


def _follow(callers: onnxruntime.RunOptions, own: onnxruntime.RunOptions, following: Lock) -> None:
    """Tell a run's own options what its caller's say, until the run is over."""
    while not following.acquire(timeout=_LOOK_SECONDS):
        if callers.terminate:
            own.terminate = True
            return
