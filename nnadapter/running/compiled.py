"""What compiling gives: a partitioning with its programs, and how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nnadapter.running.executor import CompiledPlan
from nnadapter.running.plan_memory import Holding
from nnadapter.running.promise import Watch

if TYPE_CHECKING:
    from nnadapter.planning.opening import Opened
    from nnadapter.planning.settling import Partitioning
    from partition.by_cost.origin import Origin

_BYTES_PER_NODE = 256
"""Types, verdicts and places of a node, which every plan has for itself; measured on networks of 50 to 460 nodes."""


class RunnablePlan(Protocol):
    """A plan that is ready to run, wherever it comes from."""

    @property
    def plan(self) -> CompiledPlan:
        """What runs."""

    @property
    def watch(self) -> Watch | None:
        """What holds its runs to what was measured; None where nobody does."""

    @property
    def is_open(self) -> bool:
        """It serves many shapes."""

    @property
    def holding(self) -> Holding:
        """The memory of its programs and their executions, as far as the drivers say so."""

    def close(self) -> None:
        """Free every program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlacement:
    """A placement that was weighed by running it."""

    origin: Origin
    """What found it."""
    predicted: float | None
    """Seconds; None for one that was remembered."""
    measured: float
    """Seconds of one run here: the lower quartile of its turns."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A partitioning with its programs."""

    partitioning: Partitioning
    plan: CompiledPlan
    notes: tuple[str, ...]
    """What did not go as promised, for the report."""
    compile_seconds: Mapping[int, float]
    """Per segment, what compiling it took."""
    bound_to: Mapping[int, int] = field(default_factory=dict)
    """Segment -> the one whose program it was bound to, with constants of its own; not those that were compiled."""
    timed: tuple[TimedPlacement, ...] = ()
    """What it was chosen from by measurement, the plan first, then fastest first; empty where it was not."""
    chosen: str = ""
    """How it was measured, in words."""
    watch: Watch | None = None
    """Holds its runs to what was measured; None where nobody does."""
    opening: Opened | None = None
    """How its programs leave sizes open, if they do: the partitioning is the one at the shapes they were made at."""

    @property
    def is_open(self) -> bool:
        """It serves many shapes."""
        return self.opening is not None

    @property
    def holding(self) -> Holding:
        """The memory of its programs and their executions, as far as drivers say so, and of what is known of nodes."""
        own_bytes, shared_bytes = self.plan.holding
        return Holding(own_bytes + _BYTES_PER_NODE * len(self.partitioning.plan.graph.nodes), shared_bytes)

    def close(self) -> None:
        """Free every program."""
        self.plan.close()
