"""Limits that a report must keep, for continuous integration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nnadapter.errors import InvalidOptionError
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.formatting import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What a plan must keep; None asks for nothing."""

    min_coverage: float | None = None
    """Share of the running nodes on other devices than `cpu` and `reference`, from 0 to 1."""
    max_segments: int | None = None
    """Of the whole plan, the CPU's own counted."""
    max_latency_seconds: float | None = None
    """Of the cost, measured where the plan was chosen by timing, else predicted."""


def broken_gates(report: ReportFacts, gates: Gates) -> tuple[str, ...]:
    """Return a sentence per limit that the plan does not keep; none where it keeps them all.

    Raises:
        InvalidOptionError: latency is limited, and the report knows no costs.
    """
    return tuple(_broken(report, gates))


def _broken(report: ReportFacts, gates: Gates) -> Iterator[str]:
    share = report.coverage.nodes
    if gates.min_coverage is not None and share < gates.min_coverage:
        yield f"coverage is {share:.2%} of nodes, at least {gates.min_coverage:.2%} is asked for"
    if gates.max_segments is not None and len(report.segments) > gates.max_segments:
        yield f"the plan has {len(report.segments)} segments, at most {gates.max_segments} are allowed"
    if gates.max_latency_seconds is None:
        return
    if report.cost is None:
        raise InvalidOptionError(
            f"latency cannot be judged: its cost is {report.cost_note or 'not known'}; or leave out the limit"
        )
    if report.cost.seconds > gates.max_latency_seconds:
        yield (
            f"the {report.cost.word} cost is {duration(report.cost.seconds)}, "
            f"at most {duration(gates.max_latency_seconds)} is allowed"
        )
