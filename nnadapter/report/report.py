"""PartitionReport: renderings, JSON reader, comparison of reports, and limits for CI."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from nnadapter.errors import InvalidOptionError, ReportFileError
from nnadapter.files.documents import FileKind
from nnadapter.records import dataclass
from nnadapter.report.difference import (
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
from nnadapter.report.facts import SCHEMA_VERSION, NodeFacts, ReportFacts, to_lines
from nnadapter.report.graphs import to_dot, to_model_explorer
from nnadapter.report.html import to_html
from nnadapter.report.sections import duration
from nnadapter.report.text import to_markdown, to_text

Renderer = Callable[[ReportFacts, str, DifferenceFacts | None], str]


def _text(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_text(report) + ("" if difference is None else f"\n\n{difference_text(difference)}")


def _json(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_lines(report.to_dict() | ({} if difference is None else {"difference": difference.to_dict()}))


def _markdown(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return ("" if difference is None else f"{difference_markdown(difference)}\n") + to_markdown(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of a written report."""

    render: Renderer
    endings: tuple[str, ...]
    help: str = ""
    shows_difference: bool = True


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "text": Format(render=_text, endings=(".txt",)),
        "json": Format(render=_json, endings=(".json",)),
        "md": Format(render=_markdown, endings=(".md", ".markdown")),
        "html": Format(render=to_html, endings=(".html", ".htm"), help="one self-contained page"),
        "dot": Format(
            render=lambda report, title, difference: to_dot(report),
            endings=(".dot", ".gv"),
            help="for Graphviz",
            shows_difference=False,
        ),
        "model-explorer": Format(
            render=lambda report, title, difference: to_model_explorer(report),
            endings=(".json",),
            help="custom node data for Google's Model Explorer",
            shows_difference=False,
        ),
    }
)


def formats_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the formats for a file's suffix, the default first."""
    ending = PurePath(path).suffix.lower()
    return tuple(name for name, form in FORMATS.items() if ending in form.endings)


class PartitionReport(ReportFacts):
    """Placement of every node, with reasons and costs."""

    def to_json(self) -> str:
        return FORMATS["json"].render(self, "", None)

    def to_markdown(self) -> str:
        """Return Markdown for a comment: a short summary with collapsed details."""
        return FORMATS["md"].render(self, "", None)

    def to_html(self, title: str = "", difference: DifferenceFacts | None = None) -> str:
        """Return one self-contained HTML page.

        Args:
            title: heading, such as the model's file name.
            difference: result of `compare_reports` to show.
        """
        return FORMATS["html"].render(self, title, difference)

    def to_dot(self) -> str:
        """Return the segments and the tensors between them as a Graphviz graph."""
        return FORMATS["dot"].render(self, "", None)

    def to_model_explorer(self) -> str:
        """Return the devices of nodes as custom node data for Google's Model Explorer."""
        return FORMATS["model-explorer"].render(self, "", None)

    def __str__(self) -> str:
        return FORMATS["text"].render(self, "", None)


_KEYS_OF_VERSION_1: Mapping[str, Mapping[str, str]] = {
    "": {"borders": "boundaries", "choice": "branch_decisions"},
    "borders": {
        "alongside": "threaded_segments",
        "enqueued": "enqueued_segments",
        "stay": "device_resident",
        "steps": "operations",
        "waits": "host_waits",
    },
    "borders.waits": {"before": "waiting_segment"},
    "choice": {"holds": "value"},
    "cost.candidates": {"weighed": "eligible"},
    "incidents": {"instead": "fallback_action"},
    "plan_file": {"bound": "matched_nodes", "lost": "unmatched_entries"},
    "plan_file.lost": {"why": "reason"},
    "plans": {
        "dropped": "evicted",
        "kept": "in_cache",
        "made": "compiled",
        "sizes": "served_shapes_text",
        "used_again": "reused",
    },
    "segments": {"bound_to": "program_of", "uncounted": "unknown_flops_nodes"},
    "segments.cache": {"why": "miss_reason"},
    "transfers": {
        "bytes_into": "bytes_to_device",
        "bytes_out": "bytes_to_host",
        "into": "to_device",
        "out": "to_host",
        "returned": "round_trips",
    },
}
"""Path of an object in schema version 1 -> (old key -> key in version 2)."""
_PATHS_OF_VERSION_1 = frozenset(path for key in _KEYS_OF_VERSION_1 for path in (key, key.partition(".")[0]))


def _upgrade(document: object) -> object:
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or type(version) is not int or version != 1:
        return document
    return {**_with_new_keys(document, ""), "schema_version": SCHEMA_VERSION}


def _with_new_keys(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_with_new_keys(item, path) if isinstance(item, Mapping) else item for item in value]
    if not isinstance(value, Mapping):
        return value
    keys = _KEYS_OF_VERSION_1.get(path, {})
    paths = {key: f"{path}.{key}".removeprefix(".") for key in value}
    return {
        keys.get(key, key): _with_new_keys(item, paths[key]) if paths[key] in _PATHS_OF_VERSION_1 else item
        for key, item in value.items()
    }


_FILE = FileKind(
    name="report",
    contents=PartitionReport,
    error=ReportFileError,
    advice="write it again with `nnadapter report --format json`",
    header={"schema_version": SCHEMA_VERSION},
    upgrade=_upgrade,
)


def read_report(path: str | os.PathLike[str]) -> PartitionReport:
    """Read a report written by `nnadapter report --format json`. Unknown keys are ignored. Raises ReportFileError."""
    return _checked(_FILE.read(path), os.fsdecode(path))


def report_from(data: object) -> PartitionReport:
    """Return the report from which `to_dict` returned `data`. Raises ReportFileError."""
    return _checked(_FILE.converted(data), "")


def _checked(report: PartitionReport, file: str) -> PartitionReport:
    def refuse(problem: str, *place: Any) -> None:
        _FILE.refuse(f"{problem}; {_FILE.advice}", file, place)

    devices, segments = {*report.devices, ""}, range(len(report.segments))
    if [segment.index for segment in report.segments] != [*segments]:
        refuse("they are not numbered from 0", "segments")
    for at, node in enumerate(report.nodes):
        if node.device not in devices or (node.segment is not None and node.segment not in segments):
            refuse(f"node {node.name!r} is on a device or in a segment that is not in the report", "nodes", at)
    for at, segment in enumerate(report.segments):
        if segment.device not in report.devices:
            refuse(f"segment {at} is on {segment.device!r}, which is not a device of the report", "segments", at)
    return report


class Difference(DifferenceFacts):
    """Difference of two reports, with renderings."""

    def to_markdown(self) -> str:
        return difference_markdown(self)

    def __str__(self) -> str:
        return difference_text(self)


def compare_reports(old: PartitionReport | Mapping[str, Any], new: PartitionReport | Mapping[str, Any]) -> Difference:
    """Compare two reports, or results of `to_dict`. Nodes match by name. Raises InvalidOptionError."""
    old_report, new_report = (item if isinstance(item, PartitionReport) else report_from(item) for item in (old, new))
    old_nodes, new_nodes = _by_name(old_report.nodes), _by_name(new_report.nodes)
    return Difference(
        old_report=old_report,
        new_report=new_report,
        conditions=conditions(old_report, new_report),
        figures=_compared_figures(old_report, new_report),
        moved_nodes=tuple(
            MovedNode(name=node.name, op_type=node.op_type, old_place=_place(old_nodes[key]), new_place=_place(node))
            for key, node in new_nodes.items()
            if key in old_nodes and _place(old_nodes[key]) != _place(node)
        ),
        added_nodes=tuple(node.name for key, node in new_nodes.items() if key not in old_nodes),
        removed_nodes=tuple(node.name for key, node in old_nodes.items() if key not in new_nodes),
        refusals=_refusals_of_nodes(old_report, new_report),
    )


def _by_name(nodes: Iterable[NodeFacts]) -> dict[tuple[str, int], NodeFacts]:
    name_counts: Counter[str] = Counter()
    nodes_by_name = {}
    for node in nodes:
        nodes_by_name[node.name, name_counts[node.name]] = node
        name_counts[node.name] += 1
    return nodes_by_name


def _place(node: NodeFacts) -> Place:
    return node.device or node.state


def _refusals_of_nodes(old_report: ReportFacts, new_report: ReportFacts) -> tuple[RefusalChange, ...]:
    old_refusals, new_refusals = old_report.refusals(), new_report.refusals()
    changes = [
        RefusalChange(device=device, op_type=op_type, reason=reason, old_count=old_count, new_count=new_count)
        for device, op_type, reason in dict.fromkeys([*new_refusals, *old_refusals])
        if (old_count := len(old_refusals.get((device, op_type, reason), ())))
        != (new_count := len(new_refusals.get((device, op_type, reason), ())))
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.new_count - change.old_count)))


def _compared_figures(old_report: ReportFacts, new_report: ReportFacts) -> tuple[Figure, ...]:
    def cost(report: ReportFacts) -> float | None:
        return report.cost.seconds if report.cost is not None else None

    rows: tuple[tuple[str, Callable[[ReportFacts], float | None], str, int], ...] = (
        ("nodes off the CPU", lambda report: report.coverage.nodes, "share", 1),
        ("FLOPs off the CPU", lambda report: report.coverage.flops, "share", 1),
        ("bytes off the CPU", lambda report: report.coverage.bytes, "share", 1),
        ("nodes", lambda report: len(report.nodes), "", 0),
        ("segments", lambda report: len(report.segments), "", -1),
        ("switches", lambda report: report.switches, "", -1),
        ("weights", lambda report: report.weights.total, "B", 0),
        (_cost_name(old_report, new_report), cost, "s", -1 if _same_costs(old_report, new_report) else 0),
    )
    alike = old_report.input_shapes == new_report.input_shapes and not is_other_model(old_report, new_report)
    return tuple(
        Figure(name=name, old_value=of(old_report), new_value=of(new_report), unit=unit, better=better if alike else 0)
        for name, of, unit, better in rows
    )


def _cost_name(old_report: ReportFacts, new_report: ReportFacts) -> str:
    words = {report.cost.word for report in (old_report, new_report) if report.cost is not None} or {"predicted"}
    return f"{words.pop()} cost" if len(words) == 1 else "cost"


def _same_costs(old_report: ReportFacts, new_report: ReportFacts) -> bool:
    if old_report.cost is None or new_report.cost is None:
        return False
    return old_report.policy == new_report.policy and old_report.cost.sources == new_report.cost.sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Limits that a plan must respect; None means no limit."""

    min_coverage: float | None = None
    """Minimum share of nodes off the CPU, from 0 to 1."""
    max_segments: int | None = None
    max_latency_seconds: float | None = None


def broken_gates(report: ReportFacts, gates: Gates) -> tuple[str, ...]:
    """Return a sentence for each violated limit. Raises InvalidOptionError if costs are required but unknown."""
    return tuple(_broken(report, gates))


def _broken(report: ReportFacts, gates: Gates) -> Iterator[str]:
    share = report.coverage.nodes
    if gates.min_coverage is not None and share < gates.min_coverage:
        yield f"coverage is {share:.2%} of nodes, at least {gates.min_coverage:.2%} is required"
    if gates.max_segments is not None and len(report.segments) > gates.max_segments:
        yield f"the plan has {len(report.segments)} segments, at most {gates.max_segments} are allowed"
    if gates.max_latency_seconds is None:
        return
    if report.cost is None:
        raise InvalidOptionError(
            f"latency cannot be checked, because the plan's cost is {report.cost_note or 'not known'}; without costs, "
            "leave out the limit"
        )
    if report.cost.seconds > gates.max_latency_seconds:
        yield (
            f"the {report.cost.word} cost is {duration(report.cost.seconds)}, "
            f"at most {duration(gates.max_latency_seconds)} is allowed"
        )
