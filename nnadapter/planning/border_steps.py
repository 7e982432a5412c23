"""Steps at the borders of a plan as values; `borders.py` makes them. Reports hold them, and import nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePlace:
    """Where and how a value lies. Source: Paddle Lite's Place: target, precision, layout, device."""

    target: str
    """The driver: `cpu` for the host."""
    device_id: str
    layout: str
    """`NCHW` or `NHWC`; empty for what is no image."""
    dtype: str
    """Empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryOperation:
    """What is done to a value between two segments."""

    kind: str
    """`transfer`, `cast` or `layout`."""
    value: str
    segment: int | None
    """The segment that waits for it, or made it; None for what the caller waits for."""
    source: ValuePlace
    target: ValuePlace
    nbytes: int | None
    """Of the value; None where its size is not known."""
    seconds: float | None
    """Predicted; None where nothing is known of the device, or of the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResidentValue:
    """A value that several segments of a device use, and that is not transferred between them."""

    value: str
    device: str
    segments: tuple[int, ...]
    """That make or read it there."""
    nbytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waits for a device."""

    device: str
    segment: int
    """The last one that is done then."""
    waiting_segment: int | None
    """The segment that waits; None for the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """All borders of a plan."""

    operations: tuple[BoundaryOperation, ...] = ()
    device_resident: tuple[DeviceResidentValue, ...] = ()
    host_waits: tuple[HostWait, ...] = ()
    """For segments that are under way while the host goes on; all others are done before the next one is begun."""
    enqueued_segments: tuple[int, ...] = ()
    """Segments that are work of a stream of their device."""
    threaded_segments: tuple[int, ...] = ()
    """Segments that a thread of their device runs."""
