"""What `nnadapter run` says of costs: the plan's, which plan it is, and the time of a simulated clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.cost_facts import CandidateFacts
from nnadapter.reports.rendering.cost_text import cost_sentence, cpu_words, run_words, sources_words
from nnadapter.reports.report import PartitionReport
from nnadapter.reports.units import duration

_SIMULATED = "simulated_us"
"""What a device with a simulated clock calls the microseconds of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Of the plan that ran."""

    seconds: float | None = None
    """None where costs are not known."""
    words: tuple[str, ...] = ()
    """What to know, a sentence each: cost, bound and source; that the CPU alone is better; that the run was far off."""
    chosen: str = ""
    """The candidate that ran, where several were weighed."""
    weighed: int = 0
    """How many were."""
    simulated_seconds: Mapping[str, float] = field(default_factory=dict)
    """Device -> what its segments take by its simulated clock, launches and transfers included."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, by the names of the fields."""
        return {
            "seconds": self.seconds,
            "words": list(self.words),
            "chosen": self.chosen,
            "weighed": self.weighed,
            "simulated_seconds": dict(self.simulated_seconds),
        }

    def lines(self) -> Iterator[str]:
        """As text."""
        for words in self.words:
            yield f"cost      {words}"
        if self.chosen:
            yield f"chosen    {self.chosen}, of {self.weighed} plans that were weighed"
        for device, seconds in self.simulated_seconds.items():
            yield f"simulated {device}: {duration(seconds)} of its own clock"


def run_costs(report: PartitionReport, best_seconds: float | None = None) -> RunCosts:
    """Return what the report of a session says of costs; `best_seconds` as for `run_words`.

    Of a session on the host alone nothing is said: there was nothing to choose.
    """
    if HOSTS.issuperset(report.devices):
        return RunCosts()
    cost, simulated = report.cost, _simulated(report)
    if cost is None:
        return RunCosts(simulated_seconds=simulated)
    summary = f"{cost_sentence(cost)} ({sources_words(cost)})"
    weighed = [candidate for candidate in cost.candidates if candidate.weighed]
    return RunCosts(
        seconds=cost.seconds,
        words=tuple(filter(None, (summary, cpu_words(report, cost), run_words(report, best_seconds)))),
        chosen=_chosen(weighed, cost.seconds),
        weighed=len(weighed),
        simulated_seconds=simulated,
    )


def _chosen(weighed: Sequence[CandidateFacts], seconds: float) -> str:
    """The name of the candidate that the plan is; empty where it is the only one, or devices changed it."""
    first = weighed[0] if len(weighed) > 1 else None  # the plan stands first
    return first.name if first is not None and isclose(_seconds(first), seconds) else ""


def _seconds(candidate: CandidateFacts) -> float:
    seconds = candidate.seconds if candidate.measured_seconds is None else candidate.measured_seconds
    return float("inf") if seconds is None else seconds


def _simulated(report: PartitionReport) -> dict[str, float]:
    seconds_by_device: dict[str, float] = {}
    for segment in report.segments:
        microseconds = segment.facts.get(_SIMULATED)
        if isinstance(microseconds, (int, float)):
            seconds_by_device[segment.device] = seconds_by_device.get(segment.device, 0.0) + microseconds / 1e6
    return seconds_by_device
