"""Compiled plans, and the check of a measured plan against its promised run time.

A choice measured on a busy machine may be wrong: later runs are slower than another candidate, or faster than measured.
Since single runs are noisy, several consecutive blocks of runs must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_store import Holding
from nnadapter.engine.provenance import Provenance
from nnadapter.records import dataclass, field

if TYPE_CHECKING:
    from nnadapter.engine.shape_sets import ShapeSet
    from nnadapter.engine.specialization import SpecializedPrograms
    from nnadapter.planning.dynamic_shapes import DynamicPartitioning
    from nnadapter.planning.settling import Partitioning
    from partition.by_cost.pricing import Origin


BLOCK = 16
BLOCKS = 3
"""Number of consecutive blocks that must contradict the measured time."""
_SLOWER = 1.25
_FASTER = 0.75
_LEAST_SECONDS = 20e-6
"""Smallest difference of run times that counts, since the overhead of calls varies."""

_CLOCK_SECONDS = 1e-6


def typical(runs: Sequence[float]) -> float:
    """Return the representative run time: the lower quartile."""
    return sorted(runs)[len(runs) // 4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Measured seconds of the chosen placement and of the next best one."""

    seconds: float
    rival_seconds: float = inf

    def contradicted_by(self, block: Sequence[float]) -> bool:
        took = typical(block)
        slow, fast = max(self.seconds, self.rival_seconds), self.seconds
        return took > max(_SLOWER * slow, slow + _LEAST_SECONDS) or took < min(_FASTER * fast, fast - _LEAST_SECONDS)


@dataclass(slots=True)
class Watch:
    """Comparison of a plan's runs with its measured time. Thread-safe, but concurrent calls may lose a run."""

    promise: Promise
    block: list[float] = field(default_factory=list)
    against: int = 0
    typical_seconds: float = 0.0
    ended: float = -inf

    def is_broken_by(self, seconds: float, ended: float) -> bool:
        """Record a run of `seconds` until `ended`; return True if recent runs contradict the measured time."""
        overlaps, self.ended = ended - seconds < self.ended - _CLOCK_SECONDS, ended
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
        self.against, self.typical_seconds = self.against + 1, typical(block)
        return self.against >= BLOCKS


_BYTES_PER_NODE = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class RunnablePlan:
    """Plan of a model or of a compiled file, ready to run."""

    plan: CompiledPlan
    notes: tuple[str, ...] = ()
    watch: Watch | None = None
    shapes: ShapeSet | None = None
    """Shapes that a dynamic plan serves; None for a static plan."""
    programs: SpecializedPrograms[Any] | None = None
    is_template: bool = False
    """True if this plan never runs itself, but only plans specialized from it."""

    @property
    def has_dynamic_shapes(self) -> bool:
        return self.shapes is not None or self.programs is not None

    @property
    def step_seconds(self) -> dict[int, float]:
        return {bound.step.segment: bound.seconds for bound in self.plan.steps if bound.seconds}

    @property
    def step_failures(self) -> dict[int, tuple[str, ...]]:
        return {bound.step.segment: bound.failures for bound in self.plan.steps if bound.failures}

    @property
    def holding(self) -> Holding:
        if self.programs is None:
            return self._own_holding
        return self.programs.holding_of(self.programs if self.is_template else self)

    @property
    def _own_holding(self) -> Holding:
        return self.plan.holding

    def close(self) -> None:
        if self.programs is None:
            self.plan.close()
        else:
            self.plan.close_fallback()
            self.programs.release(self.programs if self.is_template else self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlacement:
    """Candidate placement with its predicted and measured seconds."""

    origin: Origin
    predicted: float | None
    measured: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Compiled(RunnablePlan):
    """Compiled plan of a model."""

    partitioning: Partitioning
    compile_seconds: Mapping[int, float]
    cloned_from: Mapping[int, int] = field(default_factory=dict)
    """Segment with a cloned program -> segment of the original."""
    timed: tuple[TimedPlacement, ...] = ()
    """Measured placements: the chosen one first, then the others by increasing time."""
    chosen: str = ""
    dynamic: DynamicPartitioning | None = None
    """Dynamic partitioning. If set, `partitioning` is the static one at the first shapes."""

    @property
    def run_partitioning(self) -> Partitioning:
        return self.partitioning if self.dynamic is None else self.dynamic.partitioning

    @property
    def has_dynamic_shapes(self) -> bool:
        return self.dynamic is not None

    @property
    def _own_holding(self) -> Holding:
        own_bytes, shared_bytes = self.plan.holding
        return Holding(own_bytes + _BYTES_PER_NODE * len(self.partitioning.plan.graph.nodes), shared_bytes)


class Checks(Protocol):
    """Accuracy checks of one session. Thread-safe."""

    first: Lock
    """Lock that the first run of a plan holds until its results are checked."""

    def is_due(self) -> bool:
        """Count a run; return True if its steps must be compared with the CPU."""

    def is_checked(self, plan: RunnablePlan) -> bool:
        """Return True if the results of a plan were compared or need no comparison."""

    def check_run(self, plan: RunnablePlan, provenance: Provenance, values: Sequence[Any]) -> tuple[Incident, ...]:
        """Compare every step of a run with the CPU, withdraw nodes of wrong steps, and return incidents for them.

        `values` are the run's values by slot. The caller repeats a run with incidents. Raises AccuracyError if the
        policy forbids fallback.
        """

    @property
    def count(self) -> int:
        pass

    @property
    def notes(self) -> Sequence[str]:
        pass
