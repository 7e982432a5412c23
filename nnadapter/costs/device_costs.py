"""What one device costs, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from nnadapter.costs.calibration import Calibration, MeasuredNetwork, find_calibration
from nnadapter.costs.classes import CLASSES, OperationClass
from nnadapter.costs.work import Line, Numbers, UnitWork, roofline
from nnadapter.drivers.boundary import ask_profile
from nnadapter.drivers.capability import Capability, OptionValues, Profile
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Context
from nnadapter.drivers.selection import HOSTS
from nnadapter.process.processors import usable
from partition.verdict import Unsupported


class Source(StrEnum):
    """Where costs come from, best first. Every report says it."""

    MEASURED = "measured"
    """This plan was run and timed here."""
    CALIBRATED = "calibrated"
    """From a calibration of this device and driver version."""
    SIMULATED = "simulated"
    """The device says that its clock is simulated."""
    MODELED = "modeled"
    """From the limits that the device declares."""
    ASSUMED = "assumed"
    """The device declares none."""


ASSUMED = Profile(
    peak_flops=1e10,
    bandwidth=4e9,
    launch_seconds=1e-3,
    transfer_seconds=20e-6,
    transfer_bandwidth=1e9,
    operation_seconds=5e-6,
)
"""Of a device that says nothing: slower than the CPU's assumption, so that nothing goes there on a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCosts:
    """What one device costs."""

    source: Source
    profile: Profile
    """Limits; of a calibrated device, launch, transfers, and what stands for classes that were not measured."""
    lines: Mapping[OperationClass, Line] = field(default_factory=dict)
    """Measured, by class; the roofline of the profile for all others."""
    fused_lines: Mapping[OperationClass, Mapping[OperationClass, Line]] = field(default_factory=dict)
    """Measured of operations that come behind others, by the class of these; see `nnadapter.costs.classes`."""
    measured_sole_launch_seconds: float | None = None
    """Of a launch of a segment that is all that runs; None where that is the profile's."""
    networks: Mapping[str, MeasuredNetwork] = field(default_factory=dict)
    """What tells how far numbers are off, see `Calibration`."""
    processors: float = 0.0
    """Of the host, in use while it computes, as far as that was counted."""
    has_resident_values: bool = False
    """What it makes, and what it was brought, stays in memory of its own for its other segments."""
    notes: tuple[str, ...] = ()
    """What a person should know of these numbers, a sentence each."""

    off_by: float = 0.0
    """How far they are off, as a share, as far as that was measured."""
    missing_cost_notes: tuple[str, ...] = ()
    """Of the notes, those that say why nothing better is known."""

    @property
    def sole_launch_seconds(self) -> float:
        """Seconds of a launch of a segment that is all that runs."""
        return (
            self.profile.launch_seconds
            if self.measured_sole_launch_seconds is None
            else self.measured_sole_launch_seconds
        )

    @property
    def needs_processors(self) -> bool:
        """Whether it takes a good part of the host's processors: it gains nothing beside another one that does."""
        return self.profile.host_memory or self.processors >= _GOOD_PART * usable()

    @property
    def is_measured(self) -> bool:
        """Whether operations were measured, so that what they come behind, and channels, say more of them."""
        return bool(self.lines or self.fused_lines)

    def seconds(self, work: UnitWork, dtypes: tuple[str, ...]) -> Numbers:
        """Return the seconds of each unit of `work`, whose data types are positions in `dtypes`."""
        peaks = np.array([self.profile.peak_of_dtype.get(dtype, self.profile.peak_flops) for dtype in dtypes])
        unit_seconds = roofline(self.profile, work.flops, work.nbytes, peaks[work.dtypes])
        for position, operation_class in enumerate(CLASSES):
            line, members = self.lines.get(operation_class), work.classes == position
            if line is not None and members.any():
                channels = None if work.channels is None else work.channels[members]
                unit_seconds[members] = line.of(work.flops[members], work.nbytes[members], channels)
        for carrier, riding_lines in self.fused_lines.items():
            rides = work.producer_classes == CLASSES.index(carrier)
            for operation_class, line in riding_lines.items():
                members = rides & (work.classes == CLASSES.index(operation_class))
                unit_seconds[members] = line.of(work.flops[members], work.nbytes[members])
        layout = self.lines.get(OperationClass.LAYOUT)
        if layout is not None and len(work.changed):
            changing = layout.of(np.zeros_like(work.changed_bytes), work.changed_bytes)
            unit_seconds += np.bincount(work.changed, changing, len(unit_seconds))
        return unit_seconds


def device_costs(
    name: str, capability: Capability, context: Context, options: OptionValues, *, isolated: bool = False
) -> DeviceCosts:
    """Return what a device costs: by its simulated clock, a calibration, its declared limits, or assumption.

    Args:
        name: the device's.
        capability: the device's.
        context: opened with `options`.
        options: every option, defaults filled in.
        isolated: it has a process of its own.
    """
    answer: Profile | Unsupported | None = named_call(name, "profile")(ask_profile, context, capability)
    profile, notes = (None, (f"device {name!r}: {answer.detail}",)) if isinstance(answer, Unsupported) else (answer, ())
    if profile is not None and profile.simulated:
        return DeviceCosts(source=Source.SIMULATED, profile=profile)
    stored_calibration = find_calibration(name, capability.options, options, isolated=isolated)
    notes = (*notes, *filter(None, (stored_calibration.note,)))
    if stored_calibration.calibration is not None:
        return calibrated(stored_calibration.calibration, profile, notes)
    if profile is not None:
        return DeviceCosts(source=Source.MODELED, profile=profile, notes=notes, missing_cost_notes=notes)
    note = (
        f"costs of device {name!r} are assumed: it declares no limits; run `nnadapter calibrate {name}` to measure it"
    )
    return DeviceCosts(source=Source.ASSUMED, profile=ASSUMED, notes=(*notes, note), missing_cost_notes=notes)


def calibrated(calibration: Calibration, declared: Profile | None = None, notes: tuple[str, ...] = ()) -> DeviceCosts:
    """Return the costs that a calibration measured; what crosses the border how stays as the device declares it."""
    lines, is_host = calibration.lines, calibration.device in HOSTS
    if calibration.unmeasured_classes:
        names = ", ".join(operation_class.value for operation_class in calibration.unmeasured_classes)
        notes = (
            *notes,
            f"of device {calibration.device!r} these classes could not be calibrated, and are priced by the slowest "
            f"rates of the others: {names}",
        )
    per_flop = max((line.seconds_per_flop for line in lines.values()), default=0.0)
    per_byte = max((line.seconds_per_byte for line in lines.values()), default=0.0)
    profile = replace(
        declared or ASSUMED,
        peak_flops=1 / per_flop if per_flop else ASSUMED.peak_flops,
        bandwidth=1 / per_byte if per_byte else ASSUMED.bandwidth,
        peak_of_dtype={},
        launch_seconds=calibration.launch_seconds + (AROUND_THE_HOST if is_host else AROUND_A_DEVICE),
        transfer_seconds=calibration.transfer_seconds,
        transfer_bandwidth=1 / calibration.transfer_seconds_per_byte
        if calibration.transfer_seconds_per_byte
        else _UNMEASURABLE_BANDWIDTH,
        operation_seconds=min((line.seconds for line in lines.values()), default=0.0),
    )
    return DeviceCosts(
        source=Source.CALIBRATED,
        profile=profile,
        lines=lines,
        fused_lines=calibration.fused_lines,
        # A session that runs all of a model on the CPU calls ONNX Runtime, and does nothing else.
        measured_sole_launch_seconds=calibration.sole_launch_seconds + (0.0 if is_host else AROUND_A_DEVICE),
        processors=calibration.processors or 0.0,
        networks=calibration.networks,
        off_by=calibration.off_by,
        notes=notes,
    )


AROUND_A_DEVICE = 5e-6
"""Seconds that a session takes around a segment on a device: a calibration, which times programs, sees nothing of it,
and on a small model it decides."""
AROUND_THE_HOST = 2e-6
"""The same of a segment on the CPU between others."""
_GOOD_PART = 0.4
"""Of the processors that may be used."""
_UNMEASURABLE_BANDWIDTH = 1e15
"""Bytes per second where more bytes took no longer."""
