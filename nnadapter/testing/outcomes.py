"""What became of a case, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nnadapter.ir.operand import Array


class OutcomeKind(StrEnum):
    """What a driver did wrong."""

    WRONG_VALUES = "wrong values"
    NOT_A_NUMBER = "NaN where there is a number"
    WRONG_TYPE = "wrong data type"
    WRONG_SHAPE = "wrong shape"
    WRONG_COUNT = "wrong number of outputs"
    CHANGED_INPUTS = "writes to its inputs"
    CHANGED_RESULTS = "writes to results that it gave away"
    CRASHED = "crashes"
    HUNG = "gives no answer in time"
    DOES_NOT_COMPILE = "says that it takes what it does not compile"
    DOES_NOT_RUN = "fails while it computes"
    WRONG_ANSWER = "answers wrongly when asked"
    ACCEPTS_INVALID = "takes an invalid model"
    ACCEPTS_DAMAGED = "does not refuse a damaged program as it should"
    LEAKS = "leaks"


@dataclass(frozen=True, slots=True)
class PassedOutcome:
    """It did what it should."""


@dataclass(frozen=True, slots=True)
class SkippedOutcome:
    """The case is not for this device."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What it takes to see a failure with one's own eyes."""

    model: Any = None
    """In the form that the device takes."""
    inputs: tuple[Array, ...] = ()
    expected: tuple[Array, ...] = ()
    got: tuple[Array, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedOutcome:
    """It did not."""

    kind: OutcomeKind
    detail: str
    """One sentence with what was found and what was expected."""
    evidence: Evidence = Evidence()


Outcome = PassedOutcome | SkippedOutcome | FailedOutcome
"""What became of a case."""
