"""What a report says of costs, rules and the plan file: values alone, filled by whoever priced, ruled or bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nnadapter.plan_files.values import LostEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFacts:
    """A plan that was weighed."""

    name: str
    """As a person reads it: `all on the cpu`, `everything supported`."""
    seconds: float | None
    """Its predicted cost; None where nothing is known of it."""
    measured_seconds: float | None = None
    """What it took here, where it was compiled and timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """What the plan costs, in seconds of one run, and how good that is."""

    seconds: float
    """Of the plan in this report: predicted, or measured where it was chosen by timing."""
    bound_seconds: float | None = None
    """No plan that keeps the rules costs less by the same prices."""
    bound_kind: str = ""
    """Where the bound comes from, in words."""
    gap: float | None = None
    """`seconds` over `bound_seconds`, less one: 0.05 is 5 % above the bound."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> where its costs come from: `measured`, `calibrated`, `simulated`, `modelled` or `assumed`."""
    candidates: tuple[CandidateFacts, ...] = ()
    """Plans that were weighed against each other, in the order in which they were weighed."""
    all_cpu_seconds: float | None = None
    """Of everything on the CPU, likewise."""
    note: str = ""
    """What the figures do not say: an estimate that rests on assumptions, say."""

    @property
    def is_measured(self) -> bool:
        """The plan was timed here."""
        return set(self.sources.values()) == {"measured"}

    @property
    def cpu_is_better(self) -> bool:
        """The CPU alone is predicted to be faster than this plan."""
        return self.all_cpu_seconds is not None and self.all_cpu_seconds < self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule that a person gave, and what it came to."""

    text: str
    """The rule in one line."""
    source: str = ""
    """The file that holds it, or how else it was given."""
    line: int | None = None
    nodes: int = 0
    """How many nodes it binds; 0 where it binds nothing, which is said."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFileFacts:
    """The plan file that placed nodes."""

    path: str
    bound: int
    """Nodes that it placed."""
    lost: tuple[LostEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Bytes of constants that segments hold; what two segments of a device share counts once."""

    devices: Mapping[str, int] = field(default_factory=dict)
    """By device."""
    total: int = 0
    """Of them all; what two devices share counts once."""
