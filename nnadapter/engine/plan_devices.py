"""Devices of a plan: execution pools with or without a trace, and pauses after repeated failures.

Devices that keep failing rest, and are tried again later.

A step that fails costs time before the CPU does its work: a hang costs a whole deadline. So after some failures in a
row a step of a device is not tried for a while, and after as many over all its steps, or one by which it is lost, the
whole device is not. Then one run tries it, while others go on without. If that fails the pause doubles; if it goes
well, all is as before.

Pauses are seconds, not runs: what mends a device (it is reset, it cools down, somebody else frees its memory) takes
time, however many runs pass meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from nnadapter.drivers import Program, Threading, Trace
from nnadapter.drivers.failures import NamedCalls
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.errors import DeviceLostError, describe
from nnadapter.process.resources import new_lock
from nnadapter.traces.trace import COMPILE, FALLBACK
from partition.plan import Step

if TYPE_CHECKING:
    from nnadapter.drivers.tensor_copies import Transfer


def pools_of(trace: Trace, threading: Threading, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
    """Return what makes pools of programs of one segment; if there is a trace, their computations are events."""
    if not trace.is_recording:
        return lambda program: ExecutionPool(program, threading, calls)
    from nnadapter.engine.tracing import traced_pools

    return traced_pools(trace, threading, calls)


def transfers_of(trace: Trace) -> Callable[[], list[Transfer]]:
    """Return what makes a list for the transfers of a run; if there is a trace, they are events."""
    if not trace.is_recording:
        return list
    from nnadapter.engine.tracing import traced_transfers

    return traced_transfers(trace)


def making(trace: Trace, device: str, call: str, *about: Any) -> AbstractContextManager[object]:
    """Return a block in which a device makes a program of a segment."""
    if not trace.is_logging:  # a new shape makes many, and what would be told of them takes longer than the rest
        return trace.span(device, COMPILE, call)
    from nnadapter.engine.tracing import segment_facts, segment_name

    return trace.span(device, COMPILE, f"{call} {segment_name(*about)}", **segment_facts(*about))


def fell_back(trace: Trace, step: Step, reason: str, instead: str) -> None:
    """Take note of what a device failed to do, and of what is done instead."""
    trace.mark(step.device, FALLBACK, "fall back", segment=step.segment, reason=reason, then=instead)


IN_A_ROW = 3
"""Failures after which there is a pause."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds."""
_MOST_STEPS = 256
"""Steps of one device that are told apart while they fail."""
_DEVICE = ()
"""Stands for all steps."""

StepKey = tuple[str, ...]
"""What a step makes, and its nodes: plans for other shapes have the same, other choices of branches do not."""


@dataclass(slots=True)
class _Trouble:
    """Of a step, or of a device."""

    failures: int = 0
    """In a row."""
    pause: float = 0.0
    until: float = 0.0
    why: str = ""
    """The last."""


class Health:
    """How a device does in one session. Usable from many threads at once.

    Args:
        device: its name.
        rests: it may rest; where the policy forbids that something else takes its place it is tried each time.
    """

    __slots__ = ("_device", "_lock", "_rests", "_troubles", "is_troubled")

    def __init__(self, device: str, *, rests: bool = True) -> None:
        self._device, self._rests = device, rests
        self._troubles: dict[StepKey, _Trouble] = {}
        self._lock = new_lock()
        self.is_troubled = False
        """Something failed and did not go well since: all that a run asks about a device that does well."""

    def may_try(self, step: StepKey) -> bool:
        """Whether a step is tried now. Whoever is told so at the end of a pause is alone until the next would end."""
        with self._lock:
            troubles = [each for key in (_DEVICE, step) if (each := self._troubles.get(key)) and each.pause]
            now = monotonic()
            if any(now < trouble.until for trouble in troubles):
                return False
            for trouble in troubles:
                trouble.until = now + trouble.pause
            return True

    def failed(self, step: StepKey, error: BaseException) -> None:
        """Take note that a step failed."""
        is_lost = isinstance(error, DeviceLostError)
        with self._lock:
            self.is_troubled = True
            for key in (_DEVICE, step) if len(self._troubles) < _MOST_STEPS else (_DEVICE,):
                trouble = self._troubles.setdefault(key, _Trouble())
                trouble.failures += 1
                trouble.why = describe(error)
                if self._rests and (is_lost or trouble.failures >= IN_A_ROW):
                    trouble.pause = min(trouble.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
                    trouble.until = monotonic() + trouble.pause

    def succeeded(self, step: StepKey) -> None:
        """Take note that a step went well."""
        with self._lock:
            self._troubles.pop(_DEVICE, None)
            self._troubles.pop(step, None)
            self.is_troubled = bool(self._troubles)

    def text(self, step: StepKey = _DEVICE) -> str:
        """Say that a step, or the device, rests; empty where it does not."""
        with self._lock:
            trouble = self._troubles.get(_DEVICE)
            whole = trouble is not None and trouble.pause > 0
            trouble = trouble if whole else self._troubles.get(step)
            if trouble is None or not trouble.pause:
                return ""
            left = max(trouble.until - monotonic(), 0.0)
            what = f"device {self._device!r}" if whole else f"this step of device {self._device!r}"
            times = "a failure" if trouble.failures == 1 else f"{trouble.failures} failures in a row"
            return f"{what} rests after {times}, and is tried again in {left:.0f} s; the last: {trouble.why}"


WELL = Health("", rests=False)
"""Of a device whose failures nobody takes the place of: it is never troubled."""


def evict_nothing() -> bool:
    """See `PlanDevices.make_room`."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevices:
    """Where plans run: those of a session that has the model, and those of a compiled file."""

    accelerators: frozenset[str]
    """Names of the devices on which nodes count as delegated."""
    owning: frozenset[str]
    """Names of the devices that have memory of their own."""
    threading: Mapping[str, Threading]
    """Of every device, by name."""
    trace: Trace
    """Takes what happens."""
    raw: frozenset[str] = frozenset()
    """Names of the devices whose own code gets the addresses of inputs, see `Device.has_raw_inputs`."""
    rests: bool = True
    """Devices that keep failing rest: the policy lets something else take their place."""
    make_room: Callable[[], bool] = evict_nothing
    """Closes something that holds programs of the session, if nobody uses it now; whether there was anything."""
    _healths: dict[str, Health] = field(default_factory=dict)

    def health(self, device: str) -> Health:
        """Return how a device does, which all plans share."""
        return self._healths.setdefault(device, Health(device, rests=self.rests))

    @property
    def resting(self) -> tuple[str, ...]:
        """What is said of the devices that rest now."""
        return tuple(text for health in list(self._healths.values()) if (text := health.text()))

    def pools(self, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
        """Return what makes executions of a program of a device, as its threading says."""
        return pools_of(self.trace, self.threading[calls.device], calls)
