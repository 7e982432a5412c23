"""Steps that run concurrently in threads of their devices, if that pays.

The run's own thread serves one device; the others get a thread each, unless the next step needs the result. Simulated
execution must beat serial execution by `_LEAST_SECONDS` and by `_LEAST_SHARE`. Two devices that may compete for the
host's processors, or have unknown costs, run serially.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.planning.overlap import Overlap, Reads, enqueued_of, needs_of, waiting
from nnadapter.planning.settling import Partitioning
from partition.plan import Plan

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
    """Return the device that may compete for processors, as a list of at most one; None if concurrency cannot pay."""
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
    """Return whether two segments on different devices are independent, by bit masks of ancestors."""
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
