"""A control as drivers in C are given it."""

from __future__ import annotations

import ctypes

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.native.structures import SIGNATURES, Holder, make

_UNLIMITED = make("Control", deadline_seconds=UNLIMITED.deadline_seconds)
"""What all have whom nobody stops; drivers read it only."""


def build_control(control: Control, holder: Holder) -> int:
    """The address of an NNAdapterControl; it lives as long as `holder`."""
    if control is UNLIMITED:
        return ctypes.addressof(_UNLIMITED)
    cancelled, progress = control.cancelled, control.progress
    callbacks = {
        "cancelled": None if cancelled is None else SIGNATURES["cancelled"](lambda _: int(cancelled())),
        "progress": None if progress is None else SIGNATURES["progress"](lambda _, fraction: progress(fraction)),
    }
    addresses = {
        name: None if callback is None else ctypes.cast(holder.keep(callback), ctypes.c_void_p).value
        for name, callback in callbacks.items()
    }
    return holder.make("Control", deadline_seconds=control.deadline_seconds, **addresses)
