"""What is known of a plan beside what was planned: what its runs took, what failed, how it was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnadapter.drivers.tensor_copies import Transfer
from nnadapter.engine.fallback import Incidents, run_failure
from nnadapter.engine.plan_store import PlanCounts
from nnadapter.engine.tracing import driver_program

if TYPE_CHECKING:
    from nnadapter.engine.bound_steps import BoundStep
    from nnadapter.engine.compiled import Compiled, TimedPlacement
    from nnadapter.planning.settling import Partitioning
    from nnadapter.store.folder import Outcome


PLAN_KEPT = "the plan was kept in the cache by an earlier session"
NO_PLAN_KEPT = "no plan was kept that could be used"
KEEPING_NOTES = (PLAN_KEPT, NO_PLAN_KEPT)
"""How notes begin that say where a plan comes from: nothing failed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Observed:
    """A partitioning, and what was seen of it."""

    partitioning: Partitioning
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Per segment, what its last run took."""
    compile_seconds: Mapping[int, float] = field(default_factory=dict)
    bound_to: Mapping[int, int] = field(default_factory=dict)
    cache: Mapping[int, Outcome] = field(default_factory=dict)
    """Per segment, what the session's cache did for it; empty where there is none."""
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plans: PlanCounts | None = None
    timed: tuple[TimedPlacement, ...] = ()
    """Placements that were timed, the fastest being the plan."""
    model: str = ""
    """The model's name."""
    transfers: tuple[Transfer, ...] | None = None
    """Of the last run; None where no value could stay on a device in it, and where there was none."""
    chosen: str = ""
    """Where and with what they were timed."""
    incidents: Incidents | None = None
    """Of the session; None where there is none."""


@dataclass(frozen=True, eq=False, slots=True)
class KeptReport:
    """A report that was kept with a plan, and what was seen of the plan since."""

    contents: bytes
    """The report as JSON."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Per segment, what its last run took."""
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Beside those of the report."""
    plans: PlanCounts | None = None
    transfers: tuple[Transfer, ...] | None = None
    isolated: tuple[str, ...] | None = None
    """Devices that have a process of their own here; None where none is open."""
    cached: Mapping[int, bool] | None = None
    """Where the plan was kept in the session's cache: per segment, whether its program was."""
    incidents: Incidents | None = None


def observed_of(
    compiled: Compiled, plans: PlanCounts, incidents: Incidents | None = None, resting: Sequence[str] = ()
) -> Observed:
    """Return what was seen of a compiled plan.

    Args:
        compiled: the plan.
        plans: how those of the session were used.
        incidents: of the session.
        resting: what is said of devices that rest now.
    """
    steps = compiled.plan.steps
    return Observed(
        partitioning=compiled.partitioning,
        seconds={bound.step.segment: bound.seconds for bound in steps if bound.seconds},
        compile_seconds=compiled.compile_seconds,
        bound_to=compiled.bound_to,
        cache=dict(_outcomes(compiled)),
        failures={bound.step.segment: bound.failures for bound in steps if bound.failures},
        notes=(
            *compiled.notes,
            *(note for bound in steps for note in getattr(driver_program(bound.pool.program), "notes", ())),
            *(_fell_back(compiled.partitioning, bound) for bound in steps if bound.failures),
            *resting,
            *((f"the model runs as it was, not as planned: {compiled.plan.note}",) if compiled.plan.note else ()),
        ),
        plans=plans,
        timed=compiled.timed,
        chosen=compiled.chosen,
        transfers=compiled.plan.transfers,
        incidents=incidents,
    )


def looked_up(partitioning: Partitioning) -> Iterator[tuple[int, Outcome]]:
    """What the session's cache would do for each segment, were it compiled; nothing where there is none."""
    steps = partitioning.plan.steps
    for step, piece in zip(steps, partitioning.pieces, strict=True):
        cache = partitioning.setting.by_name[step.device].cache
        if cache is not None and piece is not None:
            yield step.segment, cache.look(piece.part.model, whole=len(steps) == 1)


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
