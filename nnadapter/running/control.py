"""What stands over one run: who may stop it, until when it has to be done, and whose turn it is on a device.

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
from threading import Lock, Thread
from typing import TYPE_CHECKING

from nnadapter.drivers.control import Control
from nnadapter.errors import CancelledError, DeadlineExceededError
from nnadapter.running.deadlines import ENTRY, Deadlines, deadline_of
from nnadapter.running.turns import _LOOK_SECONDS
from nnadapter.traces.event import WAIT
from nnadapter.traces.trace import SILENT

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.running.turns import Turns

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
        asked = self.trace.now()
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
        from nnadapter.drivers.onnxruntime.errors import TERMINATED

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
