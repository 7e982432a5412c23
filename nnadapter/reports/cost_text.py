"""Cost, rules and the plan file as lines of the text report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nnadapter.drivers.selection import CPU
from nnadapter.reports.units import count, duration
from nnadapter.reports.wrapping import wrapped

if TYPE_CHECKING:
    from nnadapter.reports.cost_facts import CandidateFacts, CostFacts, RuleFacts
    from nnadapter.reports.facts import PartitionReport

_INDENT = " " * 11
_NAMES = 42
"""Characters of the column of names, at least."""


def cost_lines(report: PartitionReport) -> Iterator[str]:
    """What the plan costs, how far that is from the bound, what it rests on, and what else was weighed."""
    cost = report.cost
    if cost is None:
        if report.cost_note:
            yield from wrapped(report.cost_note, "cost       ")
        return
    yield from wrapped(cost_sentence(cost), "cost       ")
    if cost.sources:
        yield from wrapped(f"costs of {sources_words(cost)}", _INDENT)
    yield from wrapped(cpu_words(report, cost), _INDENT)
    if cost.note:
        yield from wrapped(cost.note, _INDENT)
    if cost.candidates:
        yield ""
        width = max(_NAMES, *(len(candidate.name) + 1 for candidate in cost.candidates))
        yield f"{'weighed':<{width}}{'predicted':>12}{'measured':>12}"
        yield from (_candidate(candidate, width) for candidate in cost.candidates)


def cost_sentence(cost: CostFacts) -> str:
    """Cost, bound and gap in one sentence."""
    text = f"{duration(cost.seconds)} {'measured' if cost.is_measured else 'predicted'}"
    if cost.bound_seconds is not None:
        kind = f" ({cost.bound_kind})" if cost.bound_kind else ""
        text += f", at least {duration(cost.bound_seconds)} for any placement{kind}"
    return text + (f", gap {cost.gap:.1%}" if cost.gap is not None else "")


def sources_words(cost: CostFacts) -> str:
    """Each device with where its costs come from."""
    return ", ".join(f"{device}: {source}" for device, source in cost.sources.items())


def cpu_words(report: PartitionReport, cost: CostFacts) -> str:
    """That the CPU alone is better, be it the plan or not; empty where it is not."""
    others = [each for each in cost.candidates if each.name != f"all on {CPU}"]
    if others and all(each.device == CPU for each in report.segments):
        return "the CPU alone is better than every plan that was weighed"
    return cpu_sentence(cost)


def cpu_sentence(cost: CostFacts) -> str:
    """That the CPU alone is better, and by how much; empty where it is not."""
    if cost.all_cpu_seconds is None or not cost.cpu_is_better:
        return ""
    return (
        f"the CPU alone is better: {duration(cost.all_cpu_seconds)} predicted, "
        f"{duration(cost.seconds - cost.all_cpu_seconds)} less"
    )


def _candidate(candidate: CandidateFacts, width: int) -> str:
    predicted, measured = (
        "-" if seconds is None else duration(seconds) for seconds in (candidate.seconds, candidate.measured_seconds)
    )
    return f"{candidate.name:<{width}}{predicted:>12}{measured:>12}"


def rule_lines(report: PartitionReport) -> Iterator[str]:
    """Every rule with what it binds."""
    if not report.rules:
        return
    yield ""
    yield "rules"
    for rule in report.rules:
        yield from wrapped(f"{rule.text}: {rule_words(rule)}", "  ")


def rule_words(rule: RuleFacts) -> str:
    """What a rule binds, where it stands, and what is to be said of it."""
    binds = f"binds {count(rule.nodes, 'node')}" if rule.nodes else "binds nothing"
    line = f" line {rule.line}" if rule.line is not None else ""
    where = f" ({rule.source}{line})" if rule.source else ""
    return f"{binds}{where}" + (f"; {rule.note}" if rule.note else "")


def plan_file_lines(report: PartitionReport) -> Iterator[str]:
    """The plan file with how many nodes it placed, and every entry that binds nothing any more."""
    plan = report.plan_file
    if plan is None:
        return
    yield ""
    lost = f", {count(len(plan.lost), 'entry', 'entries')} lost" if plan.lost else ", none lost"
    yield from wrapped(f"{plan.path}: {count(plan.bound, 'node')} placed{lost}", "plan file  ")
    for entry in plan.lost:
        yield from wrapped(f"{entry.name} on {entry.device}: {entry.why}", "  ")
