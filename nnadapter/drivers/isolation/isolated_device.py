"""Device in a process of its own: a crash or hang of its driver becomes an error.

To the rest of the program it is a device like any other. Its process is started when it is needed, and again after it
was lost; what was made on it comes back when it is next used. The run in which it was lost raises. A process that dies
again and again without computing anything between is started with growing pauses. See docs/isolation.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from types import MappingProxyType
from typing import Any
from weakref import ReferenceType, finalize, ref

from nnadapter.drivers.capability import Capability, DeviceInfo, DynamicShapes, MemoryStatistics, OptionValues
from nnadapter.drivers.interface import Device, Execution
from nnadapter.drivers.isolation.channels import can_share
from nnadapter.drivers.isolation.child_process import PHASE_OF, PHASES, Child
from nnadapter.drivers.isolation.context import IsolatedContext, IsolatedExecution, RemoteObject
from nnadapter.drivers.isolation.stream_computations import StreamResults
from nnadapter.errors import DeviceLostError, DeviceUnavailableError, DriverError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import register_after_fork

TIME_LIMIT_S = 30.0
"""Seconds that one request of the conformance kit may take."""
_UNUSED_S = 1.0
"""A process in which no context is open ends after so long."""
_FREE_LOSSES = 3
"""In a row, without anything that was computed between: so many cost no pause."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0


_NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process holds."""

    resident_bytes: int
    """0 where the system does not say."""
    handles: int
    """Open files, sockets and pipes; 0 where the system does not say."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One of several computations."""

    results: list[Array]
    changed_inputs: tuple[int, ...]
    """Positions of the inputs that the driver wrote to."""


class IsolatedDevice(Device):
    """A device that runs elsewhere; otherwise like any other.

    Args:
        name: the device, as in `nnadapter devices`.
        time_limit_s: seconds that any one request may take; None for what `isolation.limits` says.
        opening_s: seconds that its process may take to open it now; None for what `isolation.limits` says.
        stays: its process stays when no context is open.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: as `nnadapter.drivers.registry.open_device`.
        DeviceLostError: its process died while it opened.
    """

    def __init__(
        self, name: str, *, time_limit_s: float | None = None, opening_s: float | None = None, stays: bool = True
    ) -> None:
        if not can_share():
            raise DeviceUnavailableError(
                f"device {name!r} cannot be isolated: this system passes no descriptors between processes; "
                "use it without isolation"
            )
        self.name = name
        self._limits = PHASES
        if time_limit_s is not None:
            self._limits = {**dict.fromkeys(PHASES, time_limit_s), "open": PHASES["open"]}
        self._stays = stays
        self._lock = RLock()
        self._child: Child | None = None
        self._losses = 0
        """In a row, without anything that was computed between."""
        self._rests_until = 0.0
        self._unused_since = time.monotonic()
        self._is_closed = False
        register_after_fork(self)
        answer = self.child(opening_s).told
        capability, row = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, None)
        if not isinstance(capability, Capability) or not isinstance(row, DeviceInfo):
            raise DriverError(f"device {name!r} did not say what it is", device=name, phase="open")
        ir_sizes = capability.dynamic_shapes if capability.form.value == "onnx" else DynamicShapes.NONE
        self.told = capability
        """What the driver says of the device; see `capability`."""
        self._capability = replace(capability, supports_external_initializers=False, dynamic_shapes=ir_sizes)
        self.info = replace(row, capability=self._capability)
        """The device's row of `nnadapter devices`."""

    @property
    def capability(self) -> Capability:
        """See `Device.capability`; models come with their weights, and adapter IR with sizes that are fixed."""
        return self._capability

    @property
    def loss_reason(self) -> str:
        """Why the process was lost; empty while there is one, and where none was lost."""
        child = self._child
        return "" if child is None or child.is_ended else child.lost

    @property
    def process_id(self) -> int:
        """The system's number of the process."""
        return self.child().process_id

    def create_context(
        self, options: OptionValues | Mapping[str, Any], limits: Mapping[str, float] = _NO_LIMITS
    ) -> IsolatedContext:
        """See `Device.create_context`; options that are left out have their defaults.

        Args:
            options: of the context.
            limits: seconds that questions may take, by phase; those of the device for others.

        Raises:
            InvalidOptionError: an option does not exist or does not fit.
        """
        return IsolatedContext(self, dict(options), {**self._limits, **limits})

    def memory_statistics(self) -> MemoryStatistics | None:
        statistics: MemoryStatistics | None = self.ask("memory_statistics")
        return statistics

    def compute(self, jobs: Sequence[tuple[Execution, Sequence[Array]]], *, at_once: bool = False) -> list[Computed]:
        """Compute one job after the other, or all at once in threads; results are fetched after the last is done."""
        numbered = [(number_of(execution), list(inputs)) for execution, inputs in jobs]
        results, changed = self.ask("compute", jobs=numbered, at_once=at_once)
        return [Computed(*outcome) for outcome in zip(results, changed, strict=True)]

    def compute_on_streams(
        self, before: Sequence[tuple[Execution, Sequence[Array]]], behind: Sequence[tuple[Execution, Sequence[Array]]]
    ) -> StreamResults | None:
        """Compute jobs as work of two streams; see `compute_on_streams`."""
        first, second = (
            [(number_of(execution), list(inputs)) for execution, inputs in jobs] for jobs in (before, behind)
        )
        stream_results: StreamResults | None = self.ask("compute_on_streams", before=first, behind=second)
        return stream_results

    def compute_on_device(self, jobs: Sequence[tuple[Execution, Sequence[Array]]]) -> StreamResults | None:
        """Compute jobs in memory of the device; see `compute_on_device`."""
        stream_results: StreamResults | None = self.ask(
            "compute_on_device", jobs=[(number_of(execution), list(inputs)) for execution, inputs in jobs]
        )
        return stream_results

    def footprint(self) -> Footprint:
        """What the process holds now."""
        return Footprint(*self.ask("footprint"))

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have the process do something, and return what comes of it; see `Child.ask`."""
        return self.child().ask(command, self._limits[PHASE_OF[command]], **arguments)

    def child(self, limit_s: float | None = None) -> Child:
        """The process, started where there is none.

        Args:
            limit_s: seconds that it may take to open the device, where it is started; None for those of the device.

        Raises:
            DeviceLostError: it died again and again, and rests; or it died while it opened, or is closed.
            NNAdapterError: the device does not open.
        """
        child = self._child
        if child is None or child.lost:
            child = self._started(self._limits["open"] if limit_s is None else limit_s)
        child.wait_until_open()
        return child

    def child_for(self, context: RemoteObject, limit_s: float) -> Child:
        """The process, which stays as long as the context is open there; see `child`."""
        while True:
            child = self.child(limit_s)
            with self._lock:
                if not child.lost:
                    child.users.add(context)
                    return child

    def close(self) -> None:
        """See `Device.close`: the process ends, and no other is started."""
        with self._lock:
            self._is_closed = True
            if self._child is not None:
                self._child.end(f"device {self.name!r} was closed", on_purpose=not self.loss_reason)

    def after_fork(self) -> None:
        """In a process that was forked: the next use starts a process of its own."""
        self._lock, self._child, self._losses, self._rests_until = RLock(), None, 0, 0.0

    def _started(self, limit_s: float) -> Child:
        with self._lock:
            child = self._child
            if self._is_closed:
                raise DeviceLostError(f"device {self.name!r} was closed; open it again", device=self.name, phase="open")
            if child is not None and not child.lost:
                return child
            if child is not None and not child.is_ended:
                self._note_loss(child)
            remaining = self._rests_until - time.monotonic()
            if remaining > 0:
                raise DeviceLostError(
                    f"device {self.name!r} was lost {self._losses} times without computing anything between, and rests "
                    f"for {remaining:.1f} s more; the last time, {child.lost if child is not None else ''}",
                    device=self.name,
                    phase="open",
                )
            self._unused_since = time.monotonic()
            child = self._child = Child(self.name, limit_s, _Tick(ref(self)))
            finalize(self, child.end, "nobody holds it any more", on_purpose=True).atexit = False
            return child

    def _note_loss(self, child: Child) -> None:
        """Once for each process: how long to wait before the next one."""
        if child.is_counted:
            return
        child.is_counted = True
        self._losses = 1 if child.has_delivered else self._losses + 1
        paused = self._losses - _FREE_LOSSES
        pause = _FIRST_PAUSE_S * 2.0 ** min(paused - 1, 20) if paused > 0 else 0.0
        self._rests_until = time.monotonic() + min(pause, _LONGEST_PAUSE_S)

    def end_if_unused(self, child: Child) -> None:
        """End a process in which no context was open for a while."""
        with self._lock:
            if self._stays or child.users:
                self._unused_since = time.monotonic()
            elif time.monotonic() - self._unused_since > _UNUSED_S:
                child.end(f"device {self.name!r} was not used", on_purpose=True)


class _Tick:
    """Has a device look whether its process is used, as long as somebody has the device."""

    def __init__(self, device: ReferenceType[IsolatedDevice]) -> None:
        self._device = device

    def __call__(self, child: Child) -> None:
        device = self._device()
        if device is not None:
            device.end_if_unused(child)


def number_of(execution: Execution) -> int:
    """The number by which the process knows an execution.

    Raises:
        DriverError: it is of another device.
    """
    if not isinstance(execution, IsolatedExecution):
        raise DriverError(f"got {type(execution).__name__}, expected an execution of an isolated device")
    return execution.number
