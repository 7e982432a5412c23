"""Result of compilation: a plan with its programs, how it was chosen, its measured promise, and accuracy checks.

What a choice by measurement promises, and whether later runs keep it.

A choice that was made while something else used the machine may be wrong. It shows in the runs that come after it: they
take clearly longer than another candidate did, or clearly less than was measured, so that nothing that was measured
then can be trusted. Single runs say nothing, and runs that overlap compete with each other; so several blocks of runs
in a row have to say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_store import Holding
from nnadapter.engine.provenance import Provenance

if TYPE_CHECKING:
    from nnadapter.engine.shape_sets import ShapeSet
    from nnadapter.engine.specialization import SpecializedPrograms
    from nnadapter.planning.dynamic_shapes import DynamicPartitioning
    from nnadapter.planning.settling import Partitioning
    from partition.by_cost.pricing import Origin


BLOCK = 16
"""Runs of a block."""
BLOCKS = 3
"""That have to contradict in a row."""
_SLOWER = 1.25
"""Times what another candidate took."""
_FASTER = 0.75
"""Times what was measured."""
_LEAST_SECONDS = 20e-6
"""A difference that counts, at least: what is between a device and who measures takes some microseconds."""

_CLOCK_SECONDS = 1e-6
"""By how much clocks are wrong."""


def typical(runs: Sequence[float]) -> float:
    """Return what counts of the seconds of some runs, or turns of them: the lower quartile."""
    return sorted(runs)[len(runs) // 4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What was measured, in seconds of a run."""

    seconds: float
    """Of the plan."""
    rival_seconds: float = inf
    """Of the fastest other candidate."""

    def contradicted_by(self, block: Sequence[float]) -> bool:
        """Whether runs that took so many seconds contradict it, by what is `typical` of them."""
        taken = typical(block)
        slow, fast = max(self.seconds, self.rival_seconds), self.seconds
        return taken > max(_SLOWER * slow, slow + _LEAST_SECONDS) or taken < min(_FASTER * fast, fast - _LEAST_SECONDS)


@dataclass(slots=True)
class Watch:
    """Holds runs to a promise, from any thread: two that tell at once may lose a run, and nothing else."""

    promise: Promise
    block: list[float] = field(default_factory=list)
    against: int = 0
    """Blocks in a row that contradict."""
    taken: float = 0.0
    """What was `typical` of the last block that contradicts, in seconds."""
    ended: float = -inf
    """When the run before ended."""

    def is_broken_by(self, seconds: float, now: float) -> bool:
        """Whether the promise is broken, by a run that took so long and has just ended, and by those before it."""
        overlaps, self.ended = now - seconds < self.ended - _CLOCK_SECONDS, now
        if overlaps:
            self.block = []
            return False
        block = self.block
        block.append(seconds)
        if len(block) < BLOCK:
            return False
        self.block = []
        if not self.promise.contradicted_by(block):
            self.against = 0
            return False
        self.against, self.taken = self.against + 1, typical(block)
        return self.against >= BLOCKS


_BYTES_PER_NODE = 256
"""Types, verdicts and places of a node, which every plan has for itself; measured on networks of 50 to 460 nodes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunnablePlan:
    """A plan that is ready to run, of a model or of a compiled file."""

    plan: CompiledPlan
    notes: tuple[str, ...] = ()
    """What did not go as promised, for the report."""
    watch: Watch | None = None
    """Compares its runs with what was measured; None if nothing was."""
    shapes: ShapeSet | None = None
    """The shapes that it serves; None for those that it was made at."""
    programs: SpecializedPrograms[Any] | None = None
    """Programs that a template shares with its specialized plans; None for all other plans."""
    is_template: bool = False
    """It does not run itself: its specialized plans do."""

    @property
    def has_dynamic_shapes(self) -> bool:
        """Whether it, or the template that it is specialized from, serves many shapes."""
        return self.shapes is not None or self.programs is not None

    @property
    def holding(self) -> Holding:
        """The memory of its programs and their executions, if the drivers report it."""
        if self.programs is None:
            return self._own_holding
        return self.programs.holding_of(self.programs if self.is_template else self)

    @property
    def _own_holding(self) -> Holding:
        return self.plan.holding

    def close(self) -> None:
        """Free every program that no other plan uses."""
        if self.programs is None:
            self.plan.close()
        else:
            self.plan.close_fallback()
            self.programs.release(self.programs if self.is_template else self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlacement:
    """A placement that was weighed by running it."""

    origin: Origin
    """What found it."""
    predicted: float | None
    """Seconds; None for one that was remembered."""
    measured: float
    """Seconds of one run here: the lower quartile of its turns."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Compiled(RunnablePlan):
    """A partitioning with its programs."""

    partitioning: Partitioning
    compile_seconds: Mapping[int, float]
    """Per segment, the time that its compilation took."""
    bound_to: Mapping[int, int] = field(default_factory=dict)
    """Segment -> the one whose program it was bound to, with constants of its own; not those that were compiled."""
    timed: tuple[TimedPlacement, ...] = ()
    """What it was chosen from by measurement, the plan first, then fastest first; empty where it was not."""
    chosen: str = ""
    """How it was measured, in words."""
    opening: DynamicPartitioning | None = None
    """Its partitioning with dynamic shapes, if it has them: `partitioning` is the one at the shapes it was made at."""

    @property
    def has_dynamic_shapes(self) -> bool:
        """Whether it, or the template that it is specialized from, serves many shapes."""
        return self.opening is not None

    @property
    def _own_holding(self) -> Holding:
        own_bytes, shared_bytes = self.plan.holding
        return Holding(own_bytes + _BYTES_PER_NODE * len(self.partitioning.plan.graph.nodes), shared_bytes)


class Checks(Protocol):
    """Those of one session. Usable from many threads at once."""

    first: Lock
    """Held by the run whose plan is checked before anybody gets results of it."""

    def is_due(self) -> bool:
        """Count a run; whether it is one of those that are compared."""

    def is_checked(self, plan: RunnablePlan) -> bool:
        """Whether results of a plan may be given to anybody."""

    def check_run(self, plan: RunnablePlan, provenance: Provenance, values: Sequence[Any]) -> tuple[Incident, ...]:
        """Compare every step of a run.

        Args:
            plan: that was run.
            provenance: of the run.
            values: by slot, all that its steps read and made; none where the model ran as it was.

        Returns:
            What was found to be wrong, and taken from its device: such a run is to be repeated. Nothing else.

        Raises:
            AccuracyError: something is wrong, and the policy forbids that another device does it.
        """

    @property
    def count(self) -> int:
        """How many plans were found to be right, or made right."""

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said of it in reports."""
