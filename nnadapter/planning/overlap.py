"""Concurrent steps of a plan, waits of the host, and data classes for boundary operations.

The run's own thread runs steps of one device. Steps of other devices run in threads of their devices, unless the next
step needs the result. These threads are used if simulated execution beats serial execution by `_LEAST_SECONDS` and
`_LEAST_SHARE`. If two devices may compete for the host's processors, or have unknown costs, steps run serially.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from nnadapter.records import dataclass
from partition.plan import Plan

if TYPE_CHECKING:
    from nnadapter.planning.settling import Partitioning


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
    """Segment that produces or reads the value; None for a model output."""
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
    """Segment after the wait; None at the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Boundary operations and overlap of a plan."""

    operations: tuple[BoundaryOperation, ...] = ()
    device_resident: tuple[DeviceResidentValue, ...] = ()
    host_waits: tuple[HostWait, ...] = ()
    """Waits for asynchronous segments; the host blocks while any other segment runs."""
    enqueued_segments: tuple[int, ...] = ()
    threaded_segments: tuple[int, ...] = ()


def saving_steps(plan: Plan, owning: Set[str]) -> frozenset[int]:
    """Return the segments that save copies by device-resident values. `owning` devices can have such values."""
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
    threaded_segments: frozenset[int] = frozenset()
    host_waits: tuple[HostWait, ...] = ()
    awaited: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """Segment -> segments that must finish before it starts."""

    @property
    def is_serial(self) -> bool:
        return not self.host_waits


def needs_of(plan: Plan, reads: Reads) -> list[frozenset[int]]:
    """Return, for each segment, the segments that produce its inputs. `reads` are further inputs of its program."""
    made_by = {name: step.segment for step in plan.steps for name in step.outputs}
    names = [(*step.inputs, *reads.get(step.segment, ())) for step in plan.steps]
    return [frozenset(made_by[name] for name in step_names if name in made_by) for step_names in names]


def waiting(plan: Plan, needs: Sequence[Set[int]], enqueued: frozenset[int], handed: frozenset[int]) -> Overlap:
    """Return the overlap of enqueued and threaded (`handed`) segments, with the waits that `needs` require."""
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


_HANDING_SECONDS = 100e-6
_LEAST_SECONDS = 200e-6
_LEAST_SHARE = 0.1


def overlap_of(partitioning: Partitioning, reads: Reads) -> Overlap:
    """Return the overlap of a plan's steps; `reads` are additional inputs of their programs."""
    plan = partitioning.plan
    enqueued, sharing = enqueued_of(plan, partitioning.setting.streaming), _sharing(partitioning)
    if not enqueued and sharing is None:  # nearly always
        return Overlap()
    needs = needs_of(plan, reads)
    handed = frozenset() if enqueued or sharing is None else _threaded_segments(partitioning, needs, sharing)
    return waiting(plan, needs, enqueued, handed)


def _sharing(partitioning: Partitioning) -> list[str] | None:
    """Return the device that may compete for the host's processors, or an empty list; None if threads cannot help."""
    plan, setting = partitioning.plan, partitioning.setting
    devices = dict.fromkeys(step.device for step in plan.steps)
    if len(devices) < 2 or setting.constraints.policy.times:  # one device needs no calibration files
        return None
    known_devices = _known(partitioning)
    sharing = [name for name in devices if name not in known_devices or setting.costs[name].needs_processors]
    return sharing if len(sharing) <= 1 else None


def _known(partitioning: Partitioning) -> set[str]:
    from nnadapter.costs.cost_model import Source  # a plan on one device needs no costs

    return {name for name, cost in partitioning.setting.costs.items() if cost.source is not Source.ASSUMED}


def _threaded_segments(
    partitioning: Partitioning, needs: Sequence[frozenset[int]], sharing: Sequence[str]
) -> frozenset[int]:
    plan, known_devices = partitioning.plan, _known(partitioning)
    if not _has_independent_steps(plan, needs) or not _is_sized(plan):
        return frozenset()
    seconds = [
        price.total if step.device in known_devices else 0.0
        for step, price in zip(plan.steps, partitioning.price.segments, strict=True)
    ]
    best: tuple[float, frozenset[int]] = sum(seconds), frozenset()
    # A device that may compete for processors gets the run's own thread.
    for run_device in sharing or dict.fromkeys(step.device for step in plan.steps):
        handed = _handed(plan, needs, run_device)
        taken_seconds = _elapsed(plan, needs, seconds, handed)
        if taken_seconds < best[0]:
            best = taken_seconds, handed
    saved = sum(seconds) - best[0]
    return best[1] if saved >= max(_LEAST_SECONDS, _LEAST_SHARE * sum(seconds)) else frozenset()


def _has_independent_steps(plan: Plan, needs: Sequence[frozenset[int]]) -> bool:
    ancestors_by_step: list[int] = []
    on: dict[str, int] = {}
    for number, (step, needed) in enumerate(zip(plan.steps, needs, strict=True)):
        ancestors = 0
        for segment in needed:
            ancestors |= ancestors_by_step[segment] | 1 << segment
        ancestors_by_step.append(ancestors)
        on[step.device] = on.get(step.device, 0) | 1 << number
        if ~ancestors & ((1 << number) - 1) & ~on[step.device]:
            return True
    return False


def _is_sized(plan: Plan) -> bool:
    names = {name for step in plan.steps for name in step.outputs}
    return all(plan.graph.value(name).static_shape is not None for name in names)


def _handed(plan: Plan, needs: Sequence[frozenset[int]], run_device: str) -> frozenset[int]:
    return frozenset(
        step.segment
        for step, later in zip(plan.steps, needs[1:], strict=False)
        if step.device != run_device and step.segment not in later
    )


def _elapsed(plan: Plan, needs: Sequence[frozenset[int]], seconds: Sequence[float], handed: frozenset[int]) -> float:
    host_time, finish_times = 0.0, [0.0] * len(seconds)
    free_times: dict[str, float] = {}
    for step, needed in zip(plan.steps, needs, strict=True):
        same = step.segment in handed
        for segment in needed & handed:
            if not (same and plan.steps[segment].device == step.device):
                host_time = max(host_time, finish_times[segment])
        start = max(host_time, free_times.get(step.device, 0.0))
        if same:
            finish_times[step.segment] = start + _HANDING_SECONDS + seconds[step.segment]
        else:
            host_time = finish_times[step.segment] = start + seconds[step.segment]
        free_times[step.device] = finish_times[step.segment]
    return max(host_time, *finish_times)
