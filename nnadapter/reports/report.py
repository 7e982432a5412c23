"""PartitionReport: the facts of a plan, the table of its formats, and its strict JSON reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from nnadapter.errors import ReportFileError
from nnadapter.files.documents import FileKind
from nnadapter.reports.difference_facts import DifferenceFacts, difference_markdown, difference_text
from nnadapter.reports.facts import SCHEMA_VERSION, ReportFacts, to_lines
from nnadapter.reports.rendering.graphs import to_dot, to_model_explorer
from nnadapter.reports.rendering.html import to_html
from nnadapter.reports.rendering.markdown import to_markdown
from nnadapter.reports.rendering.text import to_text

Renderer = Callable[[ReportFacts, str, DifferenceFacts | None], str]
"""A report, its title, what changed -> text."""


def _text(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_text(report) + ("" if difference is None else f"\n\n{difference_text(difference)}")


def _json(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_lines(report.to_dict() | ({} if difference is None else {"difference": difference.to_dict()}))


def _markdown(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return ("" if difference is None else f"{difference_markdown(difference)}\n") + to_markdown(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a report is written down."""

    render: Renderer
    endings: tuple[str, ...]
    """Of files that are written so."""
    help: str = ""
    """What it is, for the command line; empty where the name says it."""
    shows_difference: bool = True
    """It has a place for a comparison."""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "text": Format(render=_text, endings=(".txt",)),
        "json": Format(render=_json, endings=(".json",)),
        "md": Format(render=_markdown, endings=(".md", ".markdown")),
        "html": Format(render=to_html, endings=(".html", ".htm"), help="one page that needs nothing else"),
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
"""By name. A new one is a file beside this one and a row here."""


def formats_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the formats that go into files of such a name, the first being the one that it stands for."""
    ending = PurePath(path).suffix.lower()
    return tuple(name for name, form in FORMATS.items() if ending in form.endings)


class PartitionReport(ReportFacts):
    """What runs where and why."""

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return FORMATS["json"].render(self, "", None)

    def to_markdown(self) -> str:
        """The report as Markdown fit for a comment: a short summary, details folded."""
        return FORMATS["md"].render(self, "", None)

    def to_html(self, title: str = "", difference: DifferenceFacts | None = None) -> str:
        """The report as one HTML page that needs no network and no other file.

        Args:
            title: what the page is about, such as the model's file name.
            difference: what `compare_reports` found against an older report; the page shows both.
        """
        return FORMATS["html"].render(self, title, difference)

    def to_dot(self) -> str:
        """The segments and the tensors between them as a graph for Graphviz."""
        return FORMATS["dot"].render(self, "", None)

    def to_model_explorer(self) -> str:
        """The devices of nodes as JSON text: custom node data for Google's Model Explorer."""
        return FORMATS["model-explorer"].render(self, "", None)

    def __str__(self) -> str:
        """The report as text."""
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
"""Old and new names of the keys that schema version 2 renamed, by the path of their object in version 1."""
_PATHS_OF_VERSION_1 = frozenset(path for key in _KEYS_OF_VERSION_1 for path in (key, key.partition(".")[0]))


def _upgrade(document: object) -> object:
    """Convert a report of schema version 1 to the keys of version 2; return anything else unchanged."""
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or type(version) is not int or version != 1:
        return document
    return {**_with_new_keys(document, ""), "schema_version": SCHEMA_VERSION}


def _with_new_keys(value: Any, path: str) -> Any:
    """Rename the keys of the object at a path, or of the objects in the list there, and of those inside them."""
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
    """Return the report that `nnadapter report --format json` wrote.

    Keys that are not known are left out; keys that came later have their defaults.

    Raises:
        ReportFileError: the file cannot be read, is no whole JSON, is no report, or has another schema version.
    """
    return _checked(_FILE.read(path), os.fsdecode(path))


def report_from(data: object) -> PartitionReport:
    """Return the report whose `to_dict` is `data`.

    Raises:
        ReportFileError: something is missing, of another type, or of another schema version.
    """
    return _checked(_FILE.converted(data), "")


def _checked(report: PartitionReport, file: str) -> PartitionReport:
    """The report, unless its segments are out of order or it names devices and segments that it does not have."""

    def refuse(problem: str, *place: Any) -> None:
        _FILE.refuse(f"{problem}; {_FILE.advice}", file, place)

    devices, segments = {*report.devices, ""}, range(len(report.segments))
    if [segment.index for segment in report.segments] != [*segments]:
        refuse("they are not numbered from 0 on", "segments")
    for at, node in enumerate(report.nodes):
        if node.device not in devices or (node.segment is not None and node.segment not in segments):
            refuse(f"node {node.name!r} is on a device or in a segment that the report does not have", "nodes", at)
    for at, segment in enumerate(report.segments):
        if segment.device not in report.devices:
            refuse(f"segment {at} is on {segment.device!r}, which is no device of the report", "segments", at)
    return report
