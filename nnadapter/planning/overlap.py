"""Overlap of steps, and boundary steps as values: what the host waits for, and which steps save a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from partition.plan import Plan


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


def saving_steps(plan: Plan, owning: Set[str]) -> frozenset[int]:
    """Return the segments that compute in memory of their device, as that saves a copy.

    Args:
        plan: the plan.
        owning: devices that have memory of their own.
    """
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
    """How the steps of a plan are under way at once."""

    enqueued_segments: frozenset[int] = frozenset()
    """Segments that the host does not wait for where they are begun."""
    threaded_segments: frozenset[int] = frozenset()
    """Segments that a thread of their device runs."""
    host_waits: tuple[HostWait, ...] = ()
    """For these segments, in their order; every other segment is done when the host goes on."""
    awaited: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """Segment -> those of them that are waited for before it."""

    @property
    def is_serial(self) -> bool:
        """The host waits for every step."""
        return not self.host_waits


def needs_of(plan: Plan, reads: Reads) -> list[frozenset[int]]:
    """Return, per segment, those that make what it reads; `reads` says what programs read beside the steps' inputs."""
    made_by = {name: step.segment for step in plan.steps for name in step.outputs}
    names = [(*step.inputs, *reads.get(step.segment, ())) for step in plan.steps]
    return [frozenset(made_by[name] for name in step_names if name in made_by) for step_names in names]


def waiting(plan: Plan, needs: Sequence[Set[int]], enqueued: frozenset[int], handed: frozenset[int]) -> Overlap:
    """Return where a run waits.

    Args:
        plan: the plan.
        needs: per segment, those that make what it reads.
        enqueued: segments that are enqueued.
        handed: segments that threads of their devices run.
    """
    begun = enqueued | handed
    if not begun:
        return Overlap()

    device_of = {step.segment: step.device for step in plan.steps}
    done: dict[str, int] = {}
    waits: list[HostWait] = []
    for step in plan.steps:
        for device, last in _last_by_device(sorted(needs[step.segment] & begun), device_of).items():
            behind = step.segment in begun and step.device == device
            if not behind and last > done.get(device, -1):
                done[device] = last
                waits.append(HostWait(device=device, segment=last, waiting_segment=step.segment))
    for device, last in _last_by_device(sorted(begun), device_of).items():
        if last > done.get(device, -1):
            waits.append(HostWait(device=device, segment=last, waiting_segment=None))
    awaited: dict[int, tuple[int, ...]] = {}
    for wait in waits:
        if wait.waiting_segment is not None:
            awaited[wait.waiting_segment] = (*awaited.get(wait.waiting_segment, ()), wait.segment)
    return Overlap(enqueued_segments=enqueued, threaded_segments=handed, host_waits=tuple(waits), awaited=awaited)


def enqueued_of(plan: Plan, streaming: Set[str]) -> frozenset[int]:
    """Return the segments that are enqueued, of devices with streams and memory of their own."""
    able = saving_steps(plan, streaming)
    pairs = [
        (first.segment, second.segment)
        for first, second in zip(plan.steps, plan.steps[1:], strict=False)
        if first.device == second.device and {first.segment, second.segment} <= able
    ]
    return frozenset(segment for pair in pairs for segment in pair)


def _last_by_device(segments: Sequence[int], device_of: Mapping[int, str]) -> dict[str, int]:
    return {device_of[segment]: segment for segment in segments}
