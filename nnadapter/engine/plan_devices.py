"""Devices of a plan: execution pools with or without a trace, and pauses after repeated failures.

A step is paused after several consecutive failures. A device is paused after as many consecutive failures of any steps,
or when it is lost. After the pause one run tries it; a failure doubles the pause. Pauses are in seconds, since recovery
(reset, cooling, freed memory) takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any

from nnadapter.drivers import Program, Threading, Trace
from nnadapter.drivers.failures import NamedCalls
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.errors import DeviceLostError, describe
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass, field
from nnadapter.traces.trace import COMPILE

if TYPE_CHECKING:
    from nnadapter.drivers.tensor_copies import Transfer


def pools_of(trace: Trace, threading: Threading, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
    """Return a factory of a segment's execution pools, which record their computations if the trace is recording."""
    if not trace.is_recording:
        return lambda program: ExecutionPool(program, threading, calls)
    from nnadapter.engine.tracing import traced_pools

    return traced_pools(trace, threading, calls)


def transfers_of(trace: Trace) -> Callable[[], list[Transfer]]:
    """Return a factory of lists, which record the transfers added to them if the trace is recording."""
    if not trace.is_recording:
        return list
    from nnadapter.engine.tracing import traced_transfers

    return traced_transfers(trace)


def making(trace: Trace, device: str, call: str, *about: Any) -> AbstractContextManager[object]:
    """Return a context manager that records the making of a program in the trace.

    `call` is the driver's method, `about` the segment and its node names.
    """
    if not trace.is_logging:  # a new shape makes many programs, and details take longer than the rest
        return trace.span(device, COMPILE, call)
    from nnadapter.engine.tracing import segment_facts, segment_name

    return trace.span(device, COMPILE, f"{call} {segment_name(*about)}", **segment_facts(*about))


IN_A_ROW = 3
"""Consecutive failures that start a pause."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
_MOST_STEPS = 256
_DEVICE = ()

StepKey = tuple[str, ...]
"""Outputs and nodes of a step, which are the same for other shapes, but not for other branches."""


@dataclass(slots=True)
class _Trouble:
    failures: int = 0
    pause: float = 0.0
    until: float = 0.0
    reason: str = ""


class Health:
    """Failures of one device in one session, and the pauses that follow. Thread-safe."""

    __slots__ = ("_device", "_lock", "_pauses", "_troubles", "is_troubled")

    def __init__(self, device: str, *, pauses: bool = True) -> None:
        self._device, self._pauses = device, pauses
        self._troubles: dict[StepKey, _Trouble] = {}
        self._lock = new_lock()
        self.is_troubled = False
        """True after a failure without a later success. While it is False, runs do not call `may_try`."""

    def may_try(self, step: StepKey) -> bool:
        """Return True if a step may run on the device; after a pause, only one caller at a time gets True."""
        with self._lock:
            troubles = [item for key in (_DEVICE, step) if (item := self._troubles.get(key)) and item.pause]
            current_time = monotonic()
            if any(current_time < trouble.until for trouble in troubles):
                return False
            for trouble in troubles:
                trouble.until = current_time + trouble.pause
            return True

    def failed(self, step: StepKey, error: BaseException) -> None:
        is_lost = isinstance(error, DeviceLostError)
        with self._lock:
            self.is_troubled = True
            for key in (_DEVICE, step) if len(self._troubles) < _MOST_STEPS else (_DEVICE,):
                trouble = self._troubles.setdefault(key, _Trouble())
                trouble.failures += 1
                trouble.reason = describe(error)
                if self._pauses and (is_lost or trouble.failures >= IN_A_ROW):
                    trouble.pause = min(trouble.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
                    trouble.until = monotonic() + trouble.pause

    def succeeded(self, step: StepKey) -> None:
        with self._lock:
            self._troubles.pop(_DEVICE, None)
            self._troubles.pop(step, None)
            self.is_troubled = bool(self._troubles)

    def text(self, step: StepKey = _DEVICE) -> str:
        """Return a text on the pause of the device or step; empty without a pause."""
        with self._lock:
            trouble = self._troubles.get(_DEVICE)
            is_whole_device = trouble is not None and trouble.pause > 0
            trouble = trouble if is_whole_device else self._troubles.get(step)
            if trouble is None or not trouble.pause:
                return ""
            seconds_left = max(trouble.until - monotonic(), 0.0)
            subject = f"device {self._device!r}" if is_whole_device else f"this step of device {self._device!r}"
            times = "a failure" if trouble.failures == 1 else f"{trouble.failures} failures in a row"
            retry = f"is tried again in {seconds_left:.0f} s; last failure: {trouble.reason}"
            return f"{subject} is paused after {times}, and {retry}"


WELL = Health("", pauses=False)
"""Health of a device without fallback, such as the CPU."""


def evict_nothing() -> bool:
    """Return False: no plan is evicted."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevices:
    """Devices of a session, with their threading and health."""

    accelerators: frozenset[str]
    owning: frozenset[str]
    threading: Mapping[str, Threading]
    trace: Trace
    raw: frozenset[str] = frozenset()
    """Devices that pass addresses of inputs to native code."""
    pauses: bool = True
    """True if devices that keep failing are paused; requires fallback."""
    make_room: Callable[[], bool] = evict_nothing
    _healths: dict[str, Health] = field(default_factory=dict)

    def health(self, device: str) -> Health:
        return self._healths.setdefault(device, Health(device, pauses=self.pauses))

    @property
    def pause_texts(self) -> tuple[str, ...]:
        return tuple(text for health in list(self._healths.values()) if (text := health.text()))

    def pools(self, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
        return pools_of(self.trace, self.threading[calls.device], calls)
