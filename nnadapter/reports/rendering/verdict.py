"""The report in a few sentences: the plan against the CPU alone, what is off the CPU, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.rendering.cost_text import cpu_words, guess_words, run_words
from nnadapter.reports.rendering.flops_text import flops_off_the_cpu
from nnadapter.reports.rendering.refused import RefusedGroup, refused_groups
from nnadapter.reports.units import count, duration

_ALIKE = 1.05
"""Times that differ by less are as good as equal."""
_SHOWN_OBSTACLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a person wants to know first."""

    kind: str
    """`good` where the plan is faster than the CPU alone, `bad` where it is slower, else `open`."""
    headline: str
    """The plan against the CPU alone."""
    more: tuple[str, ...]
    """Sentences below it."""


def verdict(report: ReportFacts) -> Verdict:
    """Return the verdict on a plan: by time where it is known, and why it is not known where it is not."""
    kind, headline = _against_the_cpu(report)
    return Verdict(kind=kind, headline=headline, more=tuple(_more(report)))


def _against_the_cpu(report: ReportFacts) -> tuple[str, str]:
    devices = [name for name in report.devices if any(segment.device == name for segment in report.segments)]
    away = " and ".join(name for name in devices if name not in HOSTS)
    if not away:
        why = cpu_words(report, report.cost) if report.cost is not None else ""
        return "bad", f"Nothing runs off the CPU{f': {why}' if why else ''}."
    if report.cost is None or report.cost.against_cpu is None:
        why = report.cost_note if report.cost is None else "what the CPU alone takes is not known"
        return "open", f"Whether {away} is faster than the CPU alone is not known: costs are {why or 'not known'}."
    own, alone, word = report.cost.against_cpu
    times = f"{duration(own)} against {duration(alone)}, {word}"
    if alone >= _ALIKE * own:
        return "good", f"With {away} the model runs {alone / own:.1f} times as fast as on the CPU alone: {times}."
    if own >= _ALIKE * alone:
        return "bad", f"With {away} the model takes {own / alone:.1f} times as long as on the CPU alone: {times}."
    return "open", f"With {away} the model is as fast as on the CPU alone: {times}."


def _more(report: ReportFacts) -> Iterator[str]:
    groups = sorted(refused_groups(report), key=_weight, reverse=True)
    way = "; ".join(_obstacle(group) for group in groups[:_SHOWN_OBSTACLES])
    left = f", and {len(groups) - _SHOWN_OBSTACLES} more" if len(groups) > _SHOWN_OBSTACLES else ""
    refused = f"In the way: {way}{left}." if groups else "Nothing was refused."
    yield f"Off the CPU: {report.coverage.nodes:.1%} of nodes, {flops_off_the_cpu(report)}. {refused}"
    if report.cost is not None and (words := guess_words(report.cost)):
        yield f"{words}; `nnadapter calibrate` measures it."
    if words := run_words(report):
        yield f"{words[:1].upper()}{words[1:]}."


def _weight(group: RefusedGroup) -> tuple[float, int, int]:
    """What counts of an obstacle: predicted time with that of switches, then FLOPs, then nodes."""
    return (group.seconds or 0.0) + group.switching, group.flops, group.nodes


def _obstacle(group: RefusedGroup) -> str:
    told = [count(group.nodes, "node"), *filter(None, (group.cost, group.between))]
    return f"{group.op_type} ({group.reason}; {', '.join(told)})"
