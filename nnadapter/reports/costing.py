"""What a report says of a plan's cost, and of how good the plan is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.costs.device_costs import Source
from nnadapter.drivers.selection import CPU
from nnadapter.planning.judged import Analysis
from nnadapter.reports.cost_facts import CandidateFacts, CostFacts
from partition.latency import BoundKind, Placed

if TYPE_CHECKING:
    from nnadapter.running.compilation import Timed

_BOUNDS = {
    BoundKind.ENUMERATION: "all placements were priced",
    BoundKind.CUT: "a minimum cut, with launches",
    BoundKind.DECOMPOSITION: "a minimum cut for each device",
    BoundKind.ONE_DEVICE: "there is one placement",
}
_RUNS = 3
"""Runs of repeats that a note counts."""


def unknown_costs(analysis: Analysis) -> str:
    """Return why nobody knows what a plan costs, in one sentence; empty where it is known."""
    costs, used = analysis.judged.placer.costs, dict.fromkeys(step.device for step in analysis.plan.steps)
    unknown = [device for device in used if costs[device].source is Source.ASSUMED]
    if not unknown:
        return ""
    why = "".join(f"; {note}" for device in unknown for note in costs[device].why)
    return f"not known for {', '.join(unknown)}; `nnadapter calibrate {unknown[0]}` measures it{why}"


def cost_facts(analysis: Analysis) -> CostFacts:
    """Return the predicted costs of a plan.

    Args:
        analysis: the plan.
    """
    price, placement = analysis.price, analysis.weighed or analysis.judged.placement
    placed = placement.placed
    bound = None if placed is None else min(placed.bound, price.seconds)
    predicted = placed.candidates if placed is not None else ()
    return CostFacts(
        seconds=price.seconds,
        bound_seconds=bound,
        bound_kind=_BOUNDS[placed.bound_kind] if placed is not None and bound is not None else "",
        gap=max(0.0, price.seconds / bound - 1) if bound else None,
        sources={name: str(source) for name, source in price.table.sources.items()},
        candidates=tuple(CandidateFacts(name=each.name, seconds=each.cost) for each in predicted),
        all_cpu_seconds=price.on_cpu,
        note=_sentences(
            (
                *price.table.notes,
                placement.note,
                _uneven(price.table.sources),
                _repeats(placed),
                _limited(analysis),
            )
        ),
    )


def timed_facts(analysis: Analysis, timed: Sequence[Timed], how: str) -> CostFacts:
    """Return the costs of a plan that was chosen by timing candidates.

    Args:
        analysis: the plan.
        timed: candidates that were compiled and timed, the fastest being the plan.
        how: where and with what.
    """
    candidates = tuple(
        CandidateFacts(name=each.name, seconds=each.predicted, measured_seconds=each.measured) for each in timed
    )
    return CostFacts(
        seconds=timed[0].measured,
        sources=dict.fromkeys(analysis.plan.devices, str(Source.MEASURED)),
        candidates=candidates,
        all_cpu_seconds=next((each.measured for each in timed if each.name == f"all on {CPU}"), None),
        note=_sentences([how]),
    )


def _uneven(sources: Mapping[str, Source]) -> str:
    """A hint, where a device that was measured is weighed against a processor that was not."""
    if Source.CALIBRATED not in sources.values() or sources.get(CPU) is not Source.MODELLED:
        return ""
    return f"the CPU's costs are a cautious guess; `nnadapter calibrate {CPU}` measures them"


def _repeats(placed: Placed | None) -> str:
    runs = placed.repeats if placed is not None else ()
    if not runs:
        return ""
    return f"placement solved a few of {' and of '.join(map(str, runs[:_RUNS]))} repeats that are alike, and priced all"


def _limited(analysis: Analysis) -> str:
    if analysis.weighed is None:
        return ""
    return "devices or limits did not admit the cheapest placements as they were; they are listed as if they had"


def _sentences(notes: Iterable[str]) -> str:
    return " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes if note)
