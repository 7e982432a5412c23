"""The score card: what became of every case, as a value and as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnadapter.testing.bench import Settings
from nnadapter.testing.outcomes import FailedOutcome, Outcome, OutcomeKind, PassedOutcome, SkippedOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One case."""

    name: str
    outcome: Outcome

    @property
    def group(self) -> str:
        """The first part of its name."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the cases of a group."""

    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """A run of the kit."""

    settings: Settings
    rows: tuple[ScoreRow, ...]
    seconds: float

    @cached_property
    def failures(self) -> tuple[tuple[ScoreRow, FailedOutcome], ...]:
        """Cases that failed, in their order."""
        return tuple((row, row.outcome) for row in self.rows if isinstance(row.outcome, FailedOutcome))

    @property
    def full_marks(self) -> bool:
        """Nothing failed, and something passed."""
        return not self.failures and any(isinstance(row.outcome, PassedOutcome) for row in self.rows)

    @cached_property
    def kinds(self) -> dict[OutcomeKind, int]:
        """How often each kind of failure was met."""
        return dict(Counter(failed.kind for _, failed in self.failures))

    @cached_property
    def claimed_in_vain(self) -> tuple[str, ...]:
        """Cases of what the device said it takes and then did not compile."""
        return tuple(row.name for row, failed in self.failures if failed.kind is OutcomeKind.DOES_NOT_COMPILE)

    @cached_property
    def groups(self) -> dict[str, Tally]:
        """Counts by group, in the order of the run."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: self._tally(name) for name in names}

    def _tally(self, group: str) -> Tally:
        counts = Counter(type(row.outcome) for row in self.rows if row.group == group)
        return Tally(passed=counts[PassedOutcome], failed=counts[FailedOutcome], skipped=counts[SkippedOutcome])

    def to_dict(self) -> dict[str, Any]:
        """The card as plain data."""
        return {
            "device": self.settings.device,
            "options": dict(self.settings.options),
            "precision": self.settings.precision.value,
            "seed": self.settings.seed,
            "full_marks": self.full_marks,
            "seconds": round(self.seconds, 1),
            "groups": {
                name: {"passed": tally.passed, "failed": tally.failed, "skipped": tally.skipped}
                for name, tally in self.groups.items()
            },
            "failures": [
                {"case": row.name, "kind": failed.kind.value, "detail": failed.detail} for row, failed in self.failures
            ],
            "claimed_and_not_compiled": list(self.claimed_in_vain),
            "skipped": [
                {"case": row.name, "reason": row.outcome.reason}
                for row in self.rows
                if isinstance(row.outcome, SkippedOutcome)
            ],
        }
