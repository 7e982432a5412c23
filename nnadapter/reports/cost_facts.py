"""What a report says of costs, rules and the plan file: values alone, filled by whoever priced, ruled or bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nnadapter.plan_files.values import UnmatchedEntry

GUESSES = frozenset({"modeled", "assumed"})
"""Sources that nobody measured: limits that a device declares, or less."""
NOTHING = 1e-9
"""Seconds that are not worth telling: sums of the same prices in another order differ by less."""
_NAMED = 3
"""Names in a row that stands for many entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFacts:
    """A plan that was weighed."""

    name: str
    """As a person reads it: `all on the cpu`, `everything supported`."""
    seconds: float | None
    """Its predicted cost; None where nothing is known of it."""
    measured_seconds: float | None = None
    """What it took here, where it was compiled and timed."""
    weighed: bool = True
    """Whether it could have been chosen; if not, a plan file or rules do not allow it, and it is there to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """What the plan costs, in seconds of one run, and how good that is."""

    seconds: float
    """Of the plan in this report: predicted, or measured where it was chosen by timing."""
    bound_seconds: float | None = None
    """No plan of those that `bound_of` names costs less by the same prices."""
    bound_of: str = "any placement"
    """What the bound is of, in words: any placement, or any that keeps to the plan file and the rules."""
    bound_kind: str = ""
    """Where the bound comes from, in words."""
    gap: float | None = None
    """`seconds` over `bound_seconds`, less one: 0.05 is 5 % above the bound."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> where `seconds` come from: `measured`, `calibrated`, `simulated`, `modeled` or `assumed`."""
    predicted_seconds: float | None = None
    """Of the plan in this report, predicted, be it measured or not; None where costs are not known."""
    prediction_sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> where what is predicted of plans, segments and nodes comes from, likewise."""
    candidates: tuple[CandidateFacts, ...] = ()
    """Plans that were weighed against each other, in the order in which they were weighed."""
    all_cpu_seconds: float | None = None
    """Of everything on the CPU, whatever rules and a plan file say: measured where the plan is, else predicted."""
    all_cpu_predicted_seconds: float | None = None
    """The same, predicted."""
    note: str = ""
    """What the figures do not say: an estimate that rests on assumptions, say."""

    @property
    def is_measured(self) -> bool:
        """The plan was timed here."""
        return set(self.sources.values()) == {"measured"}

    @property
    def word(self) -> str:
        """What `seconds` are: `measured`, `predicted` or, where the costs of a device are a guess, `guessed`."""
        return "measured" if self.is_measured else self.predicted_word

    @property
    def predicted_word(self) -> str:
        """What is not measured: `predicted`, or `guessed`."""
        return predicted_word(self._predicting)

    @property
    def guesses(self) -> frozenset[str]:
        """Devices whose predicted times are guesses."""
        return frozenset(name for name, source in self._predicting.items() if source in GUESSES)

    @property
    def _predicting(self) -> Mapping[str, str]:
        return self.prediction_sources or ({} if self.is_measured else self.sources)

    @property
    def against_cpu(self) -> tuple[float, float, str] | None:
        """Seconds of this plan, of the CPU alone, and what both are: see `word`; None if not known."""
        if self.all_cpu_seconds is not None:
            return self.seconds, self.all_cpu_seconds, self.word
        if self.predicted_seconds is None or self.all_cpu_predicted_seconds is None:
            return None
        return self.predicted_seconds, self.all_cpu_predicted_seconds, self.predicted_word

    @property
    def cpu_is_better(self) -> bool:
        """The CPU alone is faster than this plan: both measured, or both predicted."""
        return self.against_cpu is not None and self.against_cpu[0] - self.against_cpu[1] >= NOTHING


def predicted_word(sources: Mapping[str, str]) -> str:
    """What to call a time that rests on such costs: `predicted`, or `guessed` where nobody measured one of them."""
    return "guessed" if GUESSES.intersection(sources.values()) else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCost:
    """What it causes between devices that one of them refuses an op type for one reason."""

    device: str
    op_type: str
    reason: str
    """A code of `partition.Reason`."""
    switches: int
    """So many less if the device took these nodes and all others stayed; negative where there would be more."""
    seconds: float | None
    """Predicted, of the transfers and launches that would go; None where costs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule that a person gave, and what it came to."""

    text: str
    """The rule in one line."""
    source: str = ""
    """Where it stands: `pin 2 in rules.toml`."""
    nodes: int = 0
    """How many nodes it binds; 0 where it binds nothing, which is said."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFileFacts:
    """The plan file that placed nodes."""

    path: str
    bound: int
    """Nodes that it placed."""
    lost: tuple[UnmatchedEntry, ...] = ()
    """Those that mean no node here, and those that a device, a rule or a limit does not let have their way."""

    def lost_groups(self) -> tuple[tuple[str, str, str], ...]:
        """What is lost in few words: names of entries that share device and reason, the device, and the reason."""
        groups: dict[tuple[str, str], list[str]] = {}
        for entry in self.lost:
            groups.setdefault((entry.device, entry.why), []).append(entry.name)
        return tuple((_named(names), device, why) for (device, why), names in groups.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Bytes of constants that segments hold; what two segments of a device share counts once."""

    devices: Mapping[str, int] = field(default_factory=dict)
    """By device."""
    total: int = 0
    """Of them all; what two devices share counts once."""
