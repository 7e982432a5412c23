"""Limits that a person sets on segments, asked of a plan that all devices admit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnadapter.rules.limits import Candidate, GivenUp, segments_to_drop
from nnadapter.rules.values import Limits, Rules
from partition.plan import Plan
from partition.segments import Segment


def given_up(
    rules: Rules,
    plan: Plan,
    segments: Sequence[Segment],
    flops: Sequence[int | None],
    benefits: Callable[[], Sequence[float | None]],
) -> GivenUp:
    """Return the segments that the limits of `rules` give up; none if there are no limits.

    Args:
        rules: the session's.
        plan: a plan that all devices admit.
        segments: of the plan, in its order.
        flops: per node of the plan's graph.
        benefits: seconds that each segment saves; asked for only where a limit needs them.

    Raises:
        RulesError: a limit cannot be kept, or needs costs that nobody knows.
    """
    if rules.limits == Limits():
        return GivenUp(segments={}, effects=())
    priced = rules.limits.min_benefit_ms is not None or rules.limits.max_segments is not None
    saved = benefits() if priced else [None] * len(segments)
    candidates = [
        Candidate(
            segment=segment,
            nodes=len(step.nodes),
            flops=sum(flops[node] or 0 for node in step.nodes),
            benefit=benefit,
        )
        for segment, step, benefit in zip(segments, plan.steps, saved, strict=True)
    ]
    return segments_to_drop(rules, candidates, plan.verdicts)
