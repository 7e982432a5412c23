"""Observations of a plan for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.drivers.tensor_copies import Transfer
from nnadapter.engine.execution_pool import driver_program
from nnadapter.engine.fallback import Incidents, run_failure
from nnadapter.engine.plan_store import PlanCounts
from nnadapter.records import dataclass, field

if TYPE_CHECKING:
    from nnadapter.engine.bound_steps import BoundStep
    from nnadapter.engine.compiled import Compiled, TimedPlacement
    from nnadapter.planning.settling import Partitioning
    from nnadapter.store.folder import Outcome


PLAN_KEPT = "the plan was cached by an earlier session"
NO_PLAN_KEPT = "no usable plan was cached"
KEEPING_NOTES = (PLAN_KEPT, NO_PLAN_KEPT)
"""Beginnings of report notes on a plan's origin. Such notes are no failures."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Observed:
    """Partitioning with findings from its compilation and runs, for a report."""

    partitioning: Partitioning
    seconds: Mapping[int, float] = field(default_factory=dict)
    compile_seconds: Mapping[int, float] = field(default_factory=dict)
    cloned_from: Mapping[int, int] = field(default_factory=dict)
    cache: Mapping[int, Outcome] = field(default_factory=dict)
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plans: PlanCounts | None = None
    timed: tuple[TimedPlacement, ...] = ()
    model: str = ""
    transfers: tuple[Transfer, ...] | None = None
    chosen: str = ""
    incidents: Incidents | None = None


@dataclass(frozen=True, eq=False, slots=True)
class KeptReport:
    """Report of a compiled file or cache entry, with findings from runs of its plan."""

    contents: bytes
    seconds: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes in addition to the notes in the report."""
    plans: PlanCounts | None = None
    transfers: tuple[Transfer, ...] | None = None
    isolated: tuple[str, ...] | None = None
    cached: Mapping[int, bool] | None = None
    """Segment -> True if its program came from the cache; None if the plan is not cached."""
    incidents: Incidents | None = None


def observed_of(
    compiled: Compiled, plans: PlanCounts, incidents: Incidents | None = None, pause_texts: Sequence[str] = ()
) -> Observed:
    """Return a plan's observations for a report; `pause_texts` are notes on paused devices."""
    steps = compiled.plan.steps
    return Observed(
        partitioning=compiled.partitioning,
        seconds=compiled.step_seconds,
        compile_seconds=compiled.compile_seconds,
        cloned_from=compiled.cloned_from,
        cache=dict(_outcomes(compiled)),
        failures=compiled.step_failures,
        notes=(
            *compiled.notes,
            *(note for bound in steps for note in getattr(driver_program(bound.pool.program), "notes", ())),
            *(_fell_back(compiled.partitioning, bound) for bound in steps if bound.failures),
            *pause_texts,
            *((f"the original model runs instead of the plan: {compiled.plan.note}",) if compiled.plan.note else ()),
        ),
        plans=plans,
        timed=compiled.timed,
        chosen=compiled.chosen,
        transfers=compiled.plan.transfers,
        incidents=incidents,
    )


def looked_up(partitioning: Partitioning) -> Iterator[tuple[int, Outcome]]:
    """Yield each segment of a device with a program cache, and the outcome of its lookup."""
    steps = partitioning.plan.steps
    for step, piece in zip(steps, partitioning.pieces, strict=True):
        cache = partitioning.setting.by_name[step.device].cache
        if cache is not None and piece is not None:
            yield step.segment, cache.look(piece.part.model, is_sole=len(steps) == 1)


def _outcomes(compiled: Compiled) -> Iterator[tuple[int, Outcome]]:
    for bound in compiled.plan.steps:
        cache = compiled.partitioning.setting.by_name[bound.step.device].cache
        outcome = None if cache is None else cache.outcome(driver_program(bound.pool.program))
        if outcome is not None:
            yield bound.step.segment, outcome


def _fell_back(partitioning: Partitioning, bound: BoundStep) -> str:
    step, graph = bound.step, partitioning.plan.graph
    failure = run_failure(step, [graph.nodes[node].name for node in step.nodes], "; ".join(bound.failures))
    instead = bound.substitute.display_name if bound.substitute is not None else partitioning.setting.host.display_name
    return f"{failure}; it ran on {instead}, whose time is shown"
