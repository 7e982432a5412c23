"""Difference of two reports, as values, text and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nnadapter.report.facts import ReportFacts
from nnadapter.report.sections import code, count, duration, folded, quantity, table, wrapped

_COMMON = 0.5
"""Minimum share of common node names for two reports of one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Circumstance that differs between the reports."""

    name: str
    """Such as `model`, `options of DEVICE` or `version of NAME`."""
    old_value: str
    new_value: str


def conditions(old: ReportFacts, new: ReportFacts) -> tuple[Condition, ...]:
    """Return the known circumstances that differ."""
    rows = [
        *_nodes(old, new),
        *((name, told(old), told(new)) for name, told in _TOLD),
        *_options(old, new),
        *_versions(old, new),
    ]
    return tuple(
        Condition(name=name, old_value=before, new_value=after)
        for name, before, after in rows
        if before and after and before != after
    )


def is_other_model(old: ReportFacts, new: ReportFacts) -> bool:
    """Return True if the reports have too few common nodes for one model."""
    return _common(old, new) < _COMMON * min(len(old.nodes), len(new.nodes))


def _common(old: ReportFacts, new: ReportFacts) -> int:
    return len({node.name for node in old.nodes} & {node.name for node in new.nodes})


def _nodes(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    if is_other_model(old, new):
        common = _common(old, new)
        shared = f"{common} of them with a name in both reports" if common else "with no common name"
        yield "another model", f"{len(old.nodes)} nodes", f"{len(new.nodes)} nodes, {shared}"


def _options(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    for device in new.device_options:
        if device in old.device_options:
            before, after = old.device_options[device], new.device_options[device]
            changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            yield f"options of {device}", _said(before, changed), _said(after, changed)


def _versions(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    for name in new.versions:
        yield f"version of {name}", old.versions.get(name, ""), new.versions[name]


def _said(options: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={options.get(name) or 'nothing'}" for name in names)


def _costs(report: ReportFacts) -> str:
    if report.cost is None:
        return "not known"
    return ", ".join(f"{device}: {source}" for device, source in report.cost.sources.items()) or "not said"


def _rules(report: ReportFacts) -> str:
    return "; ".join(rule.text for rule in report.rules) or "none"


_TOLD: tuple[tuple[str, Callable[[ReportFacts], str]], ...] = (
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
    """Node of both reports that moved."""

    name: str
    op_type: str
    old_place: Place
    new_place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalChange:
    """Changed number of refusals."""

    device: str
    op_type: str
    reason: str
    old_count: int
    new_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Number that both reports may have."""

    name: str
    old_value: float | None
    new_value: float | None
    unit: str
    """`share` from 0 to 1, `B`, `s`, or empty for a count."""
    better: int
    """1 if more is better, -1 if less is better, otherwise 0."""


@dataclass(frozen=True, kw_only=True)
class DifferenceFacts:
    """Difference of two reports; `Difference` adds the renderings."""

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
            "conditions": [asdict(condition) for condition in self.conditions],
            "figures": [asdict(figure) for figure in self.figures],
            "moved_nodes": [asdict(node) for node in self.moved_nodes],
            "added_nodes": list(self.added_nodes),
            "removed_nodes": list(self.removed_nodes),
            "refusals": [asdict(change) for change in self.refusals],
        }


_UNLIKE = "the two reports were made under different conditions"
_SHOWN = 20
_SHOWN_FOLDED = 100


def difference_text(difference: DifferenceFacts) -> str:
    """Return the difference as text."""
    return "\n".join(line for part in (_conditions, _figures, _moved, _alone, _refusals) for line in part(difference))


def difference_markdown(difference: DifferenceFacts) -> str:
    """Return the difference as Markdown."""
    rows = [
        (figure.name, shown(figure.old_value, figure.unit), shown(figure.new_value, figure.unit), _verdict(figure))
        for figure in difference.figures
    ]
    blocks = [f"### {_headline(difference)}"]
    if difference.conditions:
        made = [
            (condition.name, code(condition.old_value), code(condition.new_value))
            for condition in difference.conditions
        ]
        blocks += [f"**{_UNLIKE}**", table(("", "before", "after"), made)]
    blocks.append(table(("", "before", "after", ""), rows))
    if difference.moved_nodes:
        moved = [
            (code(node.name), code(node.op_type), code(node.old_place), code(node.new_place))
            for node in difference.moved_nodes[:_SHOWN_FOLDED]
        ]
        body = table(("node", "op type", "before", "after"), moved, len(difference.moved_nodes))
        blocks.append(folded(f"{count(len(difference.moved_nodes), 'node')} moved", body))
    if difference.refusals:
        changes = [
            (
                code(change.op_type),
                code(change.device),
                code(change.reason),
                str(change.old_count),
                str(change.new_count),
            )
            for change in difference.refusals[:_SHOWN_FOLDED]
        ]
        body = table(("op type", "by", "reason", "before", "after"), changes, len(difference.refusals))
        blocks.append(folded("refusals that changed", body))
    for words, names in (("new", difference.added_nodes), ("gone", difference.removed_nodes)):
        if names:
            body = table(("node",), [(code(name),) for name in names[:_SHOWN_FOLDED]], len(names))
            blocks.append(folded(f"{count(len(names), 'node')} {words}", body))
    return "\n\n".join(blocks) + "\n"


def shown(value: float | None, unit: str) -> str:
    """Return a figure for people; a dash if unknown."""
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
        before, after = shown(figure.old_value, figure.unit), shown(figure.new_value, figure.unit)
        yield f"{figure.name:<20}{before:>12}{after:>12}  {_verdict(figure)}".rstrip()


def _moved(difference: DifferenceFacts) -> Iterator[str]:
    yield ""
    if not difference.moved_nodes:
        yield "no node moved"
        return
    yield f"{count(len(difference.moved_nodes), 'node')} moved"
    ways = Counter((node.old_place, node.new_place) for node in difference.moved_nodes)
    for (before, after), number in ways.most_common():
        yield f"  {before} -> {after}: {number}"
    for node in difference.moved_nodes[:_SHOWN]:
        yield from wrapped(f"{node.name} ({node.op_type}): {node.old_place} -> {node.new_place}", "    ")
    yield from _left_out(len(difference.moved_nodes))


def _alone(difference: DifferenceFacts) -> Iterator[str]:
    for words, names in (("new", difference.added_nodes), ("gone", difference.removed_nodes)):
        if names:
            yield f"{count(len(names), 'node')} {words}"
            yield from (line for name in names[:_SHOWN] for line in wrapped(name, "    "))
            yield from _left_out(len(names))


def _refusals(difference: DifferenceFacts) -> Iterator[str]:
    if difference.refusals:
        yield ""
        yield "refusals that changed"
        yield from (_refusal(change) for change in difference.refusals[:_SHOWN])
        yield from _left_out(len(difference.refusals))


def _refusal(change: RefusalChange) -> str:
    word = "new" if not change.old_count else "gone" if not change.new_count else "changed"
    return f"  {change.device}: {change.op_type} {change.reason}  {change.old_count} -> {change.new_count}  {word}"


def _left_out(whole: int) -> Iterator[str]:
    if whole > _SHOWN:
        yield f"    ... and {whole - _SHOWN} more; the JSON form has them all"
