"""Rules and the plan file as lines of the text report."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.cost_facts import RuleFacts
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import count

_SHOWN_LOST = 20


def rule_lines(report: ReportFacts) -> Iterator[str]:
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
    where = f" ({rule.source})" if rule.source else ""
    return f"{binds}{where}" + (f"; {rule.note}" if rule.note else "")


def plan_file_lines(report: ReportFacts) -> Iterator[str]:
    """The plan file with how many nodes it placed, and the entries that are lost, in one line where they share why."""
    plan = report.plan_file
    if plan is None:
        return
    yield ""
    lost = f", {count(len(plan.lost), 'entry', 'entries')} lost" if plan.lost else ", none lost"
    yield from wrapped(f"{plan.path}: {count(plan.bound, 'node')} placed{lost}", "plan file  ")
    groups = plan.lost_groups()
    for names, device, why in groups[:_SHOWN_LOST]:
        yield from wrapped(f"{names} on {device}: {why}", "  ")
    if len(groups) > _SHOWN_LOST:
        yield f"  ... and {len(groups) - _SHOWN_LOST} reasons more; the JSON form has every entry"
