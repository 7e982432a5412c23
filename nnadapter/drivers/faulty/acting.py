"""Faults that come before the driver does anything: it raises, ends the process, or takes its time."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from nnadapter.drivers.faulty.faults import CallPoint, Due
from nnadapter.drivers.faulty.kinds import Kind
from nnadapter.drivers.faulty.script import error_class, signal_number
from nnadapter.errors import DeviceLostError, NNAdapterError, OutOfMemoryError

_CODE = 3
_LONG_S = 3600.0


def act(moment: CallPoint | None) -> list[Due]:
    """Make the faults of one call that come before it, and return those that are left for what it gives."""
    return [] if moment is None else make(moment, moment.due())


def make(moment: CallPoint, due: Sequence[Due]) -> list[Due]:
    """Make those of some faults that come before a call, and return the others."""
    remaining_faults = []
    for triggered_fault in due:
        moment.note(triggered_fault)
        acts = _ACTS.get(triggered_fault.fault.kind)
        if acts is None:
            remaining_faults.append(triggered_fault)
        else:
            acts(moment, triggered_fault)
    return remaining_faults


def _raise(moment: CallPoint, due: Due) -> None:
    kind = error_class(due.fault)
    raise kind(due.text, **_needed(kind))


def _needed(kind: type[BaseException]) -> dict[str, str]:
    """What a class of ours needs beside a message."""
    if not issubclass(kind, NNAdapterError):
        return {}
    parameters = inspect.signature(kind).parameters.values()
    return {
        parameter.name: ""
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }


def _no_room(moment: CallPoint, due: Due) -> None:
    raise OutOfMemoryError(f"no room: {due.text}")


def _lose(moment: CallPoint, due: Due) -> None:
    moment.faults.lose(due)
    raise DeviceLostError(f"the device is gone: {due.text}")


def _crash(moment: CallPoint, due: Due) -> None:
    signal.raise_signal(signal_number(due.fault))
    _exit(moment, due)  # somebody catches or ignores the signal


def _exit(moment: CallPoint, due: Due) -> None:
    sys.stderr.flush()
    os._exit(_CODE if due.fault.code is None else due.fault.code)


def _wait(moment: CallPoint, due: Due) -> None:
    """Wait as a call in C does: whatever the deadline, and whoever cancels."""
    end = float("inf") if due.fault.seconds is None else time.monotonic() + due.fault.seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(remaining, _LONG_S))


_ACTS: Mapping[Kind, Callable[[CallPoint, Due], None]] = {
    Kind.FAIL: _raise,
    Kind.RAISE: _raise,
    Kind.OUT_OF_MEMORY: _no_room,
    Kind.DEVICE_LOST: _lose,
    Kind.CRASH: _crash,
    Kind.EXIT: _exit,
    Kind.HANG: _wait,
    Kind.SLOW: _wait,
}
