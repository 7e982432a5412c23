"""A report read back from its JSON form, strictly: what is read is complete and of the right types."""

from __future__ import annotations

import os
from typing import Any

from nnadapter.errors import ReportFileError
from nnadapter.files.strict import FileKind
from nnadapter.reports.facts import SCHEMA_VERSION
from nnadapter.reports.report import PartitionReport

_FILE = FileKind(
    name="report",
    contents=PartitionReport,
    error=ReportFileError,
    advice="write it again with `nnadapter report --format json`",
    header={"schema_version": SCHEMA_VERSION},
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
