"""Which steps of a plan the host does not wait for, and where it waits: decided when the plan is made.

A device with streams does work while the host goes on. So steps that follow each other on such a device are enqueued,
one behind the other, and the host waits once:

1. Only steps are enqueued that compute in memory of their device, as that saves a copy (`saving_steps`), and
   that have another such step of their device right before or behind them: to enqueue one alone saves no wait.
2. A step that reads what an enqueued one made waits for that one first, unless it is enqueued behind it: devices do not
   wait for each other, the host does. What comes behind that one goes on.
3. At its end a run waits for whatever is left, before its outputs are brought to the host.

What is done by one wait needs no other: work of a stream is done in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from nnadapter.planning.saving import saving_steps
from partition.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The host waits for a device."""

    device: str
    segment: int
    """The last one that is done then."""
    before: int | None
    """The segment that waits; None for the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How the steps of a plan are under way at once."""

    enqueued: frozenset[int] = frozenset()
    """Segments that the host does not wait for where they are begun."""
    waits: tuple[Wait, ...] = ()
    """For enqueued segments, in their order; every other segment is done when the host goes on."""
    awaited: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Segment -> the enqueued ones that are waited for before it."""


def overlap_of(plan: Plan, streaming: Set[str], reads: Mapping[int, Collection[str]]) -> Overlap:
    """Return how the steps of a plan overlap.

    Args:
        plan: the plan.
        streaming: devices with streams and memory of their own.
        reads: per segment, names of what its program reads beside the step's inputs.
    """
    enqueued = _enqueued(plan, streaming)
    made_by = {name: step.segment for step in plan.steps if step.segment in enqueued for name in step.outputs}
    device_of = {step.segment: step.device for step in plan.steps}
    done: dict[str, int] = {}
    waits: list[Wait] = []
    for step in plan.steps:
        needed = {made_by[name] for name in (*step.inputs, *reads.get(step.segment, ())) if name in made_by}
        for device, last in _last_by_device(sorted(needed), device_of).items():
            behind = step.segment in enqueued and step.device == device
            if not behind and last > done.get(device, -1):
                done[device] = last
                waits.append(Wait(device=device, segment=last, before=step.segment))
    for device, last in _last_by_device(sorted(enqueued), device_of).items():
        if last > done.get(device, -1):
            waits.append(Wait(device=device, segment=last, before=None))
    awaited: dict[int, tuple[int, ...]] = {}
    for wait in waits:
        if wait.before is not None:
            awaited[wait.before] = (*awaited.get(wait.before, ()), wait.segment)
    return Overlap(enqueued=enqueued, waits=tuple(waits), awaited=awaited)


def _enqueued(plan: Plan, streaming: Set[str]) -> frozenset[int]:
    able = saving_steps(plan, streaming)
    pairs = [
        (first.segment, second.segment)
        for first, second in zip(plan.steps, plan.steps[1:], strict=False)
        if first.device == second.device and {first.segment, second.segment} <= able
    ]
    return frozenset(segment for pair in pairs for segment in pair)


def _last_by_device(segments: Sequence[int], device_of: Mapping[int, str]) -> dict[str, int]:
    return {device_of[segment]: segment for segment in segments}
