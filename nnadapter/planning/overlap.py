"""Overlap of steps, host waits, and the boundary operations of a plan as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from nnadapter.records import dataclass
from partition.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePlace:
    """Location and format of a value. Source: Place in Paddle Lite."""

    target: str
    device_id: str
    layout: str
    """`NCHW`, `NHWC`, or empty."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryOperation:
    """Transfer, cast or layout change of a value."""

    kind: str
    """`transfer`, `cast` or `layout`."""
    value: str
    segment: int | None
    """Producing or waiting segment; None for a model output."""
    source: ValuePlace
    target: ValuePlace
    nbytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResidentValue:
    """Value that segments of a device share without transfers."""

    value: str
    device: str
    segments: tuple[int, ...]
    nbytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """Point at which the host waits for a device."""

    device: str
    segment: int
    waiting_segment: int | None
    """None for the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Boundary operations and overlap of a plan."""

    operations: tuple[BoundaryOperation, ...] = ()
    device_resident: tuple[DeviceResidentValue, ...] = ()
    host_waits: tuple[HostWait, ...] = ()
    """Waits for asynchronous segments; others block the host."""
    enqueued_segments: tuple[int, ...] = ()
    threaded_segments: tuple[int, ...] = ()


def saving_steps(plan: Plan, owning: Set[str]) -> frozenset[int]:
    """Return the segments that compute in their device's memory, as that saves a copy."""
    if not owning:
        return frozenset()
    made_on = {name: step.device for step in plan.steps for name in step.outputs}
    steps = [step for step in plan.steps if step.device in owning]
    reads = Counter((step.device, name) for step in steps for name in set(step.inputs))
    returning = {name for (device, name) in reads if made_on.get(name) == device}
    return frozenset(
        step.segment
        for step in steps
        if not returning.isdisjoint(step.inputs)
        or not returning.isdisjoint(step.outputs)
        or any(reads[step.device, name] > 1 for name in step.inputs)
    )


Reads = Mapping[int, Collection[str]]


class Overlap(NamedTuple):
    """Asynchronous segments of a plan, and waits for them."""

    enqueued_segments: frozenset[int] = frozenset()
    """Segments on a stream of their device."""
    threaded_segments: frozenset[int] = frozenset()
    """Segments in a thread of their device."""
    host_waits: tuple[HostWait, ...] = ()
    """Points at which the host waits for such a segment; every other segment blocks the host while it runs."""
    awaited: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """Segment -> segments to wait for before it."""

    @property
    def is_serial(self) -> bool:
        return not self.host_waits


def needs_of(plan: Plan, reads: Reads) -> list[frozenset[int]]:
    """Return the producing segments of each segment's inputs, including its program's (`reads`)."""
    made_by = {name: step.segment for step in plan.steps for name in step.outputs}
    names = [(*step.inputs, *reads.get(step.segment, ())) for step in plan.steps]
    return [frozenset(made_by[name] for name in step_names if name in made_by) for step_names in names]


def waiting(plan: Plan, needs: Sequence[Set[int]], enqueued: frozenset[int], handed: frozenset[int]) -> Overlap:
    """Return the overlap of asynchronous segments, with the waits that it requires."""
    begun = enqueued | handed
    if not begun:
        return Overlap()

    device_of = {step.segment: step.device for step in plan.steps}
    finished_segments: dict[str, int] = {}
    waits: list[HostWait] = []
    for step in plan.steps:
        for device, last in _last_by_device(sorted(needs[step.segment] & begun), device_of).items():
            is_ordered = step.segment in begun and step.device == device
            if not is_ordered and last > finished_segments.get(device, -1):
                finished_segments[device] = last
                waits.append(HostWait(device=device, segment=last, waiting_segment=step.segment))
    for device, last in _last_by_device(sorted(begun), device_of).items():
        if last > finished_segments.get(device, -1):
            waits.append(HostWait(device=device, segment=last, waiting_segment=None))
    awaited: dict[int, tuple[int, ...]] = {}
    for wait in waits:
        if wait.waiting_segment is not None:
            awaited[wait.waiting_segment] = (*awaited.get(wait.waiting_segment, ()), wait.segment)
    return Overlap(enqueued_segments=enqueued, threaded_segments=handed, host_waits=tuple(waits), awaited=awaited)


def enqueued_of(plan: Plan, streaming: Set[str]) -> frozenset[int]:
    """Return the segments to enqueue: consecutive ones of a streaming device that share its memory."""
    able = saving_steps(plan, streaming)
    pairs = [
        (first.segment, second.segment)
        for first, second in zip(plan.steps, plan.steps[1:], strict=False)
        if first.device == second.device and {first.segment, second.segment} <= able
    ]
    return frozenset(segment for pair in pairs for segment in pair)


def _last_by_device(segments: Sequence[int], device_of: Mapping[int, str]) -> dict[str, int]:
    return {device_of[segment]: segment for segment in segments}
