"""What changed between two reports, node by node by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nnadapter.reports.difference_facts import (
    DifferenceFacts,
    Figure,
    MovedNode,
    Place,
    RefusalChange,
    conditions,
    difference_markdown,
    difference_text,
    is_other_model,
)
from nnadapter.reports.facts import NodeFacts, ReportFacts
from nnadapter.reports.report import PartitionReport, report_from


class Difference(DifferenceFacts):
    """Two reports, and what differs."""

    def to_markdown(self) -> str:
        """As Markdown fit for a comment."""
        return difference_markdown(self)

    def __str__(self) -> str:
        """As text."""
        return difference_text(self)


def compare_reports(old: PartitionReport | Mapping[str, Any], new: PartitionReport | Mapping[str, Any]) -> Difference:
    """Return what changed from `old` to `new`, each a report or its `to_dict`.

    Nodes are the same if they have the same name; the second node of a name is the second one of that name.

    Raises:
        InvalidOptionError: a mapping is no report of this schema version.
    """
    before, after = (item if isinstance(item, PartitionReport) else report_from(item) for item in (old, new))
    was, now = _by_name(before.nodes), _by_name(after.nodes)
    return Difference(
        old_report=before,
        new_report=after,
        conditions=conditions(before, after),
        figures=_compared_figures(before, after),
        moved_nodes=tuple(
            MovedNode(name=node.name, op_type=node.op_type, old_place=_place(was[key]), new_place=_place(node))
            for key, node in now.items()
            if key in was and _place(was[key]) != _place(node)
        ),
        added_nodes=tuple(node.name for key, node in now.items() if key not in was),
        removed_nodes=tuple(node.name for key, node in was.items() if key not in now),
        refusals=_refusals_of_nodes(before, after),
    )


def _by_name(nodes: Iterable[NodeFacts]) -> dict[tuple[str, int], NodeFacts]:
    seen: Counter[str] = Counter()
    nodes_by_name = {}
    for node in nodes:
        nodes_by_name[node.name, seen[node.name]] = node
        seen[node.name] += 1
    return nodes_by_name


def _place(node: NodeFacts) -> Place:
    return node.device or node.state


def _refusals_of_nodes(before: ReportFacts, after: ReportFacts) -> tuple[RefusalChange, ...]:
    was, now = before.refusals(), after.refusals()
    changes = [
        RefusalChange(device=device, op_type=op_type, reason=reason, old_count=old, new_count=new)
        for device, op_type, reason in dict.fromkeys([*now, *was])
        if (old := len(was.get((device, op_type, reason), ()))) != (new := len(now.get((device, op_type, reason), ())))
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.new_count - change.old_count)))


def _compared_figures(before: ReportFacts, after: ReportFacts) -> tuple[Figure, ...]:
    def seconds(report: ReportFacts) -> float | None:
        return report.cost.seconds if report.cost is not None else None

    rows: tuple[tuple[str, float | None, float | None, str, int], ...] = (
        ("nodes off the CPU", before.coverage.nodes, after.coverage.nodes, "share", 1),
        ("FLOPs off the CPU", before.coverage.flops, after.coverage.flops, "share", 1),
        ("bytes off the CPU", before.coverage.bytes, after.coverage.bytes, "share", 1),
        ("nodes", len(before.nodes), len(after.nodes), "", 0),
        ("segments", len(before.segments), len(after.segments), "", -1),
        ("switches", before.switches, after.switches, "", -1),
        ("weights", before.weights.total, after.weights.total, "B", 0),
        (_cost_name(before, after), seconds(before), seconds(after), "s", -1 if _same_costs(before, after) else 0),
    )
    alike = before.input_shapes == after.input_shapes and not is_other_model(before, after)
    return tuple(
        Figure(name=name, old_value=old, new_value=new, unit=unit, better=better if alike else 0)
        for name, old, new, unit, better in rows
    )


def _cost_name(before: ReportFacts, after: ReportFacts) -> str:
    words = {report.cost.word for report in (before, after) if report.cost is not None} or {"predicted"}
    return f"{words.pop()} cost" if len(words) == 1 else "cost"


def _same_costs(before: ReportFacts, after: ReportFacts) -> bool:
    if before.cost is None or after.cost is None:
        return False
    return before.policy == after.policy and before.cost.sources == after.cost.sources
