"""Which segments save a copy by computing in memory of their device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from partition.plan import Plan


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
