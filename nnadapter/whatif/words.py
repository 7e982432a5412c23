"""Gains in words, as text and Markdown tell them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from nnadapter.reports.cost_facts import NOTHING
from nnadapter.reports.units import count, duration
from nnadapter.whatif.facts import FeatureFacts, RoadStep, Standing, WhatIfFacts


def supporting(facts: WhatIfFacts, feature: FeatureFacts) -> str:
    """What one feature would be worth: `supporting Erf: 13 segments fewer, 61 -> 97 % of FLOPs, ...`."""
    gained = _change(facts.now, feature.then)
    parts = (segments(feature.segments_saved), gained, time(facts, feature.seconds_saved))
    return f"supporting {feature.label}: {listed(parts)}"


def saving(facts: WhatIfFacts, step: RoadStep) -> str:
    """What one step saves."""
    return listed((segments(step.segments_saved), time(facts, step.seconds_saved)))


def listed(parts: Iterable[str]) -> str:
    """What there is to tell, with commas."""
    return ", ".join(filter(None, parts))


def segments(saved: int) -> str:
    """`13 segments fewer`, `1 segment more`."""
    return f"{count(abs(saved), 'segment')} {'fewer' if saved > 0 else 'more'}" if saved else "as many segments"


def time(facts: WhatIfFacts, saved: float | None) -> str:
    """`predicted 3.10 ms faster`, or `guessed`; empty where no times are known."""
    if not facts.is_timed:
        return ""
    if saved is None:
        return "and a value would cross that cannot"
    if abs(saved) < NOTHING:
        return f"{facts.word} as fast"
    return f"{facts.word} {duration(abs(saved))} {'faster' if saved > 0 else 'slower'}"


def predicted(facts: WhatIfFacts, standing: Standing) -> str:
    """`predicted 12.0 ms`, or `guessed`; empty where no times are known."""
    if not facts.is_timed:
        return ""
    if standing.seconds is None:
        return "time not known: a value cannot cross"
    return f"{facts.word} {duration(standing.seconds)}"


def standing(facts: WhatIfFacts, then: Standing) -> str:
    """`12 segments, 97.0 % of FLOPs, predicted 12.0 ms`."""
    return listed(
        (count(then.segments, "segment"), f"{share(then.flops)} of {flops_name(then)}", predicted(facts, then))
    )


def coverage(totals: Standing) -> str:
    """`12 segments, 97.0 % of FLOPs and 90.0 % of nodes off the CPU`."""
    shares = f"{share(totals.flops)} of {flops_name(totals)} and {share(totals.nodes)} of nodes"
    return f"{count(totals.segments, 'segment')}, {shares} off the CPU"


def flops_name(of: Standing) -> str:
    """What FLOPs are shared out: all, or those that are known."""
    return "known FLOPs" if of.uncounted else "FLOPs"


def cpu_words(facts: WhatIfFacts) -> str:
    """Where the CPU alone is better: than what is now, and from which step of the road map on it is not any more.

    Empty where it is not better, or where no times are known.
    """
    cpu_seconds, current_seconds = facts.all_cpu_seconds, facts.now.seconds
    if cpu_seconds is None or current_seconds is None or current_seconds - cpu_seconds < NOTHING:
        return ""
    text = (
        f"the CPU alone is better: {facts.word} {duration(cpu_seconds)}, {duration(current_seconds - cpu_seconds)} less"
    )
    if not facts.road_map:
        return text
    faster_steps = (place for place, step in enumerate(facts.road_map, 1) if (step.then.seconds or inf) < cpu_seconds)
    first = next(faster_steps, None)
    return f"{text}; " + (
        "so it is after every step of the road map"
        if first is None
        else f"step {first} of the road map is the first below"
    )


def share(part: float) -> str:
    """`61.2 %`."""
    return f"{100 * part:.1f} %"


def _change(baseline: Standing, improved: Standing) -> str:
    """Coverage, of nodes where that of FLOPs is about the same, with digits only where they tell something."""
    if share(baseline.flops) == share(improved.flops) and share(baseline.nodes) != share(improved.nodes):
        return f"{_shares(baseline.nodes, improved.nodes)} of nodes"
    return f"{_shares(baseline.flops, improved.flops)} of {flops_name(improved)}"


def _shares(baseline: float, improved: float) -> str:
    digits = 0 if round(100 * baseline) != round(100 * improved) else 1
    return f"{100 * baseline:.{digits}f} -> {100 * improved:.{digits}f} %"
