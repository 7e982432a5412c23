"""Difference of two reports, as values, text and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nnadapter.records import dataclass
from nnadapter.report.facts import ReportFacts, plain
from nnadapter.report.sections import code, count, duration, folded, omitted, quantity, sources_words, table, wrapped

_COMMON = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Circumstance that differs between the reports."""

    name: str
    """Name such as `model`, `options of DEVICE` or `version of NAME`."""
    old_value: str
    new_value: str


def conditions(old_report: ReportFacts, new_report: ReportFacts) -> tuple[Condition, ...]:
    """Return the known circumstances that differ."""
    rows = [
        *_nodes(old_report, new_report),
        *((name, describe(old_report), describe(new_report)) for name, describe in _CIRCUMSTANCES),
        *_options(old_report, new_report),
        *_versions(old_report, new_report),
    ]
    return tuple(
        Condition(name=name, old_value=old_value, new_value=new_value)
        for name, old_value, new_value in rows
        if old_value and new_value and old_value != new_value
    )


def is_other_model(old_report: ReportFacts, new_report: ReportFacts) -> bool:
    """Return whether the reports have too few common nodes to be about one model."""
    return _common(old_report, new_report) < _COMMON * min(len(old_report.nodes), len(new_report.nodes))


def _common(old_report: ReportFacts, new_report: ReportFacts) -> int:
    return len({node.name for node in old_report.nodes} & {node.name for node in new_report.nodes})


def _nodes(old_report: ReportFacts, new_report: ReportFacts) -> Iterator[tuple[str, str, str]]:
    if is_other_model(old_report, new_report):
        common = _common(old_report, new_report)
        shared = f"{common} of them with a name in both reports" if common else "with no common name"
        yield "another model", f"{len(old_report.nodes)} nodes", f"{len(new_report.nodes)} nodes, {shared}"


def _options(old_report: ReportFacts, new_report: ReportFacts) -> Iterator[tuple[str, str, str]]:
    for device in new_report.device_options:
        if device in old_report.device_options:
            old_options, new_options = old_report.device_options[device], new_report.device_options[device]
            changed = [
                name for name in {**old_options, **new_options} if old_options.get(name) != new_options.get(name)
            ]
            yield f"options of {device}", _options_text(old_options, changed), _options_text(new_options, changed)


def _versions(old_report: ReportFacts, new_report: ReportFacts) -> Iterator[tuple[str, str, str]]:
    for name in new_report.versions:
        yield f"version of {name}", old_report.versions.get(name, ""), new_report.versions[name]


def _options_text(options: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={options.get(name) or 'nothing'}" for name in names)


def _costs(report: ReportFacts) -> str:
    if report.cost is None:
        return "not known"
    return sources_words(report.cost.sources) or "not said"


def _rules(report: ReportFacts) -> str:
    return "; ".join(rule.text for rule in report.rules) or "none"


_CIRCUMSTANCES: tuple[tuple[str, Callable[[ReportFacts], str]], ...] = (
    ("model", lambda report: report.model),
    ("devices", lambda report: ", ".join(report.devices)),
    ("policy", lambda report: report.policy),
    ("fallback", lambda report: report.fallback),
    ("inputs", lambda report: ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())),
    ("choice", lambda report: report.branch_decisions_text or "any"),
    ("rules", _rules),
    ("plan file", lambda report: "none" if report.plan_file is None else report.plan_file.path),
    ("costs", _costs),
    ("machine", lambda report: report.machine),
)


Place = str
"""Device, `folded` or `unused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedNode:
    """Node of both reports, with a different place in each."""

    name: str
    op_type: str
    old_place: Place
    new_place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalChange:
    """Number of refusals for one reason in each report."""

    device: str
    op_type: str
    reason: str
    old_count: int
    new_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Number to compare between the reports."""

    name: str
    old_value: float | None
    new_value: float | None
    unit: str
    """`share` from 0 to 1, `B`, `s`, or empty for a count."""
    better: int
    """1 if more is better, -1 if less is better, otherwise 0."""


@dataclass(frozen=True, kw_only=True)
class DifferenceFacts:
    """Difference of two reports, which `Difference` renders."""

    old_report: ReportFacts
    new_report: ReportFacts
    conditions: tuple[Condition, ...]
    figures: tuple[Figure, ...]
    moved_nodes: tuple[MovedNode, ...]
    added_nodes: tuple[str, ...]
    removed_nodes: tuple[str, ...]
    refusals: tuple[RefusalChange, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "conditions": plain(self.conditions),
            "figures": plain(self.figures),
            "moved_nodes": plain(self.moved_nodes),
            "added_nodes": list(self.added_nodes),
            "removed_nodes": list(self.removed_nodes),
            "refusals": plain(self.refusals),
        }


_UNLIKE = "the two reports were made under different conditions"
_SHOWN = 20
_SHOWN_FOLDED = 100


def difference_text(difference: DifferenceFacts) -> str:
    """Return the difference as text."""
    return "\n".join(
        line for part in (_conditions, _figures, _moved, _added_and_removed, _refusals) for line in part(difference)
    )


def difference_markdown(difference: DifferenceFacts) -> str:
    """Return the difference as Markdown."""
    rows = [
        (figure.name, shown(figure.old_value, figure.unit), shown(figure.new_value, figure.unit), _verdict(figure))
        for figure in difference.figures
    ]
    blocks = [f"### {_headline(difference)}"]
    if difference.conditions:
        condition_rows = [
            (condition.name, code(condition.old_value), code(condition.new_value))
            for condition in difference.conditions
        ]
        blocks += [f"**{_UNLIKE}**", table(("", "before", "after"), condition_rows)]
    blocks.append(table(("", "before", "after", ""), rows))
    moved = [(node.name, node.op_type, node.old_place, node.new_place) for node in difference.moved_nodes]
    blocks += _details(f"{count(len(moved), 'node')} moved", ("node", "op type", "before", "after"), moved)
    changes = [
        (change.op_type, change.device, change.reason, change.old_count, change.new_count)
        for change in difference.refusals
    ]
    blocks += _details("refusals that changed", ("op type", "by", "reason", "before", "after"), changes)
    for words, names in (("new", difference.added_nodes), ("gone", difference.removed_nodes)):
        blocks += _details(f"{count(len(names), 'node')} {words}", ("node",), [(name,) for name in names])
    return "\n\n".join(blocks) + "\n"


def _details(summary: str, heads: Sequence[str], rows: Sequence[Sequence[str | int]]) -> Iterator[str]:
    if rows:
        cells = [[code(cell) if isinstance(cell, str) else str(cell) for cell in row] for row in rows[:_SHOWN_FOLDED]]
        yield folded(summary, table(heads, cells, len(rows)))


def shown(value: float | None, unit: str) -> str:
    """Return a figure as text; a dash if unknown."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    return duration(value) if unit == "s" else quantity(value, "B") if unit == "B" else f"{value:.0f}"


def _headline(difference: DifferenceFacts) -> str:
    changed = [figure for figure in difference.figures if _verdict(figure)]
    if not (
        changed
        or difference.conditions
        or difference.moved_nodes
        or difference.added_nodes
        or difference.removed_nodes
        or difference.refusals
    ):
        return "Nothing changed"
    return f"{count(len(difference.moved_nodes), 'node')} moved, {count(len(changed), 'figure')} changed"


def _verdict(figure: Figure) -> str:
    if figure.old_value == figure.new_value:
        return ""
    if figure.old_value is None or figure.new_value is None or not figure.better:
        return "changed"
    return "better" if (figure.new_value - figure.old_value) * figure.better > 0 else "worse"


def _conditions(difference: DifferenceFacts) -> Iterator[str]:
    if difference.conditions:
        yield _UNLIKE
        for condition in difference.conditions:
            yield from wrapped(f"{condition.name}: {condition.old_value} -> {condition.new_value}", "  ")
        yield ""


def _figures(difference: DifferenceFacts) -> Iterator[str]:
    yield f"{'compared':<20}{'before':>12}{'after':>12}"
    for figure in difference.figures:
        old_text, new_text = shown(figure.old_value, figure.unit), shown(figure.new_value, figure.unit)
        yield f"{figure.name:<20}{old_text:>12}{new_text:>12}  {_verdict(figure)}".rstrip()


def _moved(difference: DifferenceFacts) -> Iterator[str]:
    yield ""
    if not difference.moved_nodes:
        yield "no node moved"
        return
    yield f"{count(len(difference.moved_nodes), 'node')} moved"
    ways = Counter((node.old_place, node.new_place) for node in difference.moved_nodes)
    for (old_place, new_place), number in ways.most_common():
        yield f"  {old_place} -> {new_place}: {number}"
    for node in difference.moved_nodes[:_SHOWN]:
        yield from wrapped(f"{node.name} ({node.op_type}): {node.old_place} -> {node.new_place}", "    ")
    yield from omitted(len(difference.moved_nodes), _SHOWN, "    ")


def _added_and_removed(difference: DifferenceFacts) -> Iterator[str]:
    for words, names in (("new", difference.added_nodes), ("gone", difference.removed_nodes)):
        if names:
            yield f"{count(len(names), 'node')} {words}"
            yield from (line for name in names[:_SHOWN] for line in wrapped(name, "    "))
            yield from omitted(len(names), _SHOWN, "    ")


def _refusals(difference: DifferenceFacts) -> Iterator[str]:
    if difference.refusals:
        yield ""
        yield "refusals that changed"
        yield from (_refusal(change) for change in difference.refusals[:_SHOWN])
        yield from omitted(len(difference.refusals), _SHOWN, "    ")


def _refusal(change: RefusalChange) -> str:
    word = "new" if not change.old_count else "gone" if not change.new_count else "changed"
    return f"  {change.device}: {change.op_type} {change.reason}  {change.old_count} -> {change.new_count}  {word}"
