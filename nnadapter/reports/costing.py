"""What a report says of a plan's cost, and of how good the plan is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.costs.device_costs import Source
from nnadapter.drivers.selection import CPU
from nnadapter.planning.judgment import placed_as
from nnadapter.planning.placing import place
from nnadapter.planning.settling import Partitioning
from nnadapter.reports.cost_facts import CandidateFacts, CostFacts
from partition.by_cost.latency import BoundKind, CheapestPlacement
from partition.by_cost.origin import Origin, all_on

if TYPE_CHECKING:
    from nnadapter.running.compiled import TimedPlacement

_BOUNDS = {
    BoundKind.ENUMERATION: "all of them were priced",
    BoundKind.CUT: "a minimum cut, with launches",
    BoundKind.DECOMPOSITION: "a minimum cut for each device",
    BoundKind.ONE_DEVICE: "there is one placement",
}
_ALL_CPU = all_on(CPU)
_RUNS = 3
"""Runs of repeats that a note counts."""


def unknown_costs(partitioning: Partitioning) -> str:
    """Return why nobody knows what a plan costs, in one sentence; empty where it is known."""
    costs, used = partitioning.setting.costs, dict.fromkeys(step.device for step in partitioning.plan.steps)
    unknown = [device for device in used if costs[device].source is Source.ASSUMED]
    if not unknown:
        return ""
    why = "".join(f"; {note}" for device in unknown for note in costs[device].why)
    return f"not known for {', '.join(unknown)}; `nnadapter calibrate {unknown[0]}` measures it{why}"


def cost_facts(partitioning: Partitioning) -> CostFacts:
    """Return the predicted costs of a plan.

    Args:
        partitioning: the plan.
    """
    price, placement = partitioning.price, partitioning.weighed or partitioning.placement
    placed = placement.placed
    bound = None if placed is None else min(placed.bound, price.seconds)
    predicted = [(candidate.origin, candidate.cost, None) for candidate in placed.candidates] if placed else []
    sources = {name: str(source) for name, source in price.table.sources.items()}
    return CostFacts(
        seconds=price.seconds,
        predicted_seconds=price.seconds,
        bound_seconds=bound,
        bound_of=_bound_of(partitioning),
        bound_kind=_BOUNDS[placed.bound_kind] if placed is not None and bound is not None else "",
        gap=max(0.0, price.seconds / bound - 1) if bound else None,
        sources=sources,
        prediction_sources=sources,
        candidates=_candidates(predicted, price.on_cpu),
        all_cpu_seconds=price.on_cpu,
        all_cpu_predicted_seconds=price.on_cpu,
        note=_sentences(
            (
                *price.table.notes,
                placement.note,
                _uneven(price.table.sources),
                _repeats(placed),
                _limited(partitioning),
            )
        ),
    )


def timed_facts(partitioning: Partitioning, timed: Sequence[TimedPlacement], how: str) -> CostFacts:
    """Return the costs of a plan that was chosen by timing candidates.

    Args:
        partitioning: the plan.
        timed: candidates that were compiled and timed, the fastest being the plan.
        how: where and with what.
    """
    price, known = partitioning.price, not unknown_costs(partitioning)
    candidates = [
        (timed_placement.origin, seconds, timed_placement.measured)
        for timed_placement, seconds in zip(timed, _predictions(partitioning, timed), strict=True)
    ]
    return CostFacts(
        seconds=timed[0].measured,
        predicted_seconds=price.seconds if known else None,
        sources=dict.fromkeys(partitioning.plan.devices, str(Source.MEASURED)),
        prediction_sources={name: str(source) for name, source in price.table.sources.items()},
        candidates=_candidates(candidates, price.on_cpu if known else None),
        all_cpu_seconds=next(
            (timed_placement.measured for timed_placement in timed if timed_placement.origin == _ALL_CPU), None
        ),
        all_cpu_predicted_seconds=price.on_cpu if known else None,
        note=_sentences([how]),
    )


def _predictions(partitioning: Partitioning, timed: Sequence[TimedPlacement]) -> list[float | None]:
    """What was predicted of each; of choices that were remembered, what is predicted now."""
    if (
        all(timed_placement.predicted is not None for timed_placement in timed)
        or partitioning.judgment.demands.whole is None
    ):
        return [timed_placement.predicted for timed_placement in timed]
    free = place(placed_as(partitioning.judgment, None), partitioning.setting)
    priced = {candidate.origin: candidate.cost for candidate in free.candidates()}
    return [
        priced.get(timed_placement.origin) if timed_placement.predicted is None else timed_placement.predicted
        for timed_placement in timed
    ]


def _candidates(
    weighed: Sequence[tuple[Origin, float | None, float | None]], on_cpu: float | None
) -> tuple[CandidateFacts, ...]:
    """What was weighed, as predicted and measured; the CPU alone is shown last where a person does not allow it."""
    candidates = tuple(
        CandidateFacts(name=str(origin), seconds=predicted, measured_seconds=measured)
        for origin, predicted, measured in weighed
    )
    if not candidates or on_cpu is None or any(origin == _ALL_CPU for origin, _, _ in weighed):
        return candidates
    return (*candidates, CandidateFacts(name=f"{_ALL_CPU}, for comparison", seconds=on_cpu, weighed=False))


def _bound_of(partitioning: Partitioning) -> str:
    bound, applied = partitioning.judgment.demands.bound, partitioning.judgment.demands.applied
    said = {
        "the plan file": bound is not None and bound.placement,
        "the rules": applied is not None and any(effect.nodes for effect in applied.effects),
        "fallback 'forbid'": partitioning.setting.constraints.fallback_at("load") == "forbid",
    }
    allowing = [words for words, holds in said.items() if holds]
    return f"any placement that keeps to {_listed(allowing)}" if allowing else "any placement"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if words[:-1] else "") + words[-1]


def _uneven(sources: Mapping[str, Source]) -> str:
    """A hint, where a device that was measured is weighed against a processor that was not."""
    if Source.CALIBRATED not in sources.values() or sources.get(CPU) is not Source.MODELED:
        return ""
    return f"the CPU's costs are a cautious guess; `nnadapter calibrate {CPU}` measures them"


def _repeats(placed: CheapestPlacement | None) -> str:
    runs = placed.repeats if placed is not None else ()
    if not runs:
        return ""
    return f"placement solved a few of {' and of '.join(map(str, runs[:_RUNS]))} repeats that are alike, and priced all"


def _limited(partitioning: Partitioning) -> str:
    if partitioning.weighed is None:
        return ""
    return "devices or limits did not admit the cheapest placements as they were; they are listed as if they had"


def _sentences(notes: Iterable[str]) -> str:
    return " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes if note)
