"""A run in the background, that can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from nnadapter.running.control import RunControl
from nnadapter.running.provenance import Provenance

Work = Callable[[RunControl], tuple[list[Any], Provenance]]


class RunFuture(Future[list[Any]]):
    """The results of a run to come."""

    provenance: Provenance | None = None
    """Where they came from, once they are there."""

    def __init__(self, control: RunControl) -> None:
        super().__init__()
        self._control = control

    def cancel(self) -> bool:
        """Have the run not begin, or stop before its next step, in the middle of one where the device can.

        Returns:
            True if it does not begin. False if it is under way or done: one that is stopped ends in nnadapter's
            CancelledError.
        """
        never_began = super().cancel()
        if not never_began:
            self._control.stop()
        return never_began

    def work(self, run: Work) -> None:
        """Run, in the background's thread."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            results, self.provenance = run(self._control)
        except BaseException as error:  # noqa: BLE001  kept for the caller of result()
            self.set_exception(error)
        else:
            self.set_result(results)
