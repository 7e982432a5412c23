"""How long a driver may take, and whether anybody still wants what it does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from nnadapter.drivers.native.structures import SIGNATURES, Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a compilation or a computation is given along."""

    deadline_seconds: float = 0.0
    """After the call began; 0 for none."""
    cancelled: Callable[[], bool] | None = None
    """Asked by the driver, from any thread; must not raise."""
    progress: Callable[[float], None] | None = None
    """Told by the driver how much is done, 0 to 1, from any thread; must not raise."""

    def build(self, holder: Holder) -> int:
        """The address of an NNAdapterControl; it lives as long as `holder`."""
        cancelled, progress = self.cancelled, self.progress
        callbacks = {
            "cancelled": None if cancelled is None else SIGNATURES["cancelled"](lambda _: int(cancelled())),
            "progress": None if progress is None else SIGNATURES["progress"](lambda _, fraction: progress(fraction)),
        }
        addresses = {
            name: None if each is None else ctypes.cast(holder.keep(each), ctypes.c_void_p).value
            for name, each in callbacks.items()
        }
        return holder.make("Control", deadline_seconds=self.deadline_seconds, **addresses)


UNLIMITED = Control()
"""No deadline, and nobody who cancels."""
