"""Overlap of steps: which ones the host does not wait for, where it waits, and which ones save a copy.

Which steps of a plan the host does not wait for, and where it waits: decided when the plan is made.

A device with streams does work while the host goes on. So steps that follow each other on such a device are enqueued,
one behind the other, and the host waits once:

1. Only steps are enqueued that compute in memory of their device, as that saves a copy (`saving_steps`), and
   that have another such step of their device right before or behind them: to enqueue one alone saves no wait.
2. A step that reads what an enqueued one made waits for that one first, unless it is enqueued behind it: devices do not
   wait for each other, the host does. What comes behind that one goes on.
3. Independent steps of two devices run at the same time where that pays, those of one in a thread (`alongside.py`).
4. At its end a run waits for whatever is left, before its outputs are brought to the host.

What is done by one wait needs no other: work of a stream, or of a thread, is done in its order.

The third takes costs (`alongside.overlap_of`); a compiled file says what came of them. All else follows from the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from partition.plan import Plan

if TYPE_CHECKING:
    from nnadapter.planning.border_steps import HostWait


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
    from nnadapter.planning.border_steps import HostWait  # most plans wait for nothing

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
