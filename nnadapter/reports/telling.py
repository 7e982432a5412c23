"""The report of what an engine observed: made now, or kept with a plan. Imports what makes one where it is made."""

from __future__ import annotations

import json
from dataclasses import replace

from nnadapter.reports.reading import report_from
from nnadapter.reports.report import PartitionReport
from nnadapter.reports.transfer_facts import transfer_facts
from nnadapter.running.observed import KeptReport, Observed


def report_told(observed: Observed | KeptReport) -> PartitionReport:
    """Return the report of what was observed."""
    if isinstance(observed, KeptReport):
        return _kept(observed)
    from nnadapter.reports.building import report_of

    return report_of(observed)


def _kept(observed: KeptReport) -> PartitionReport:
    report = report_from(json.loads(observed.contents))
    segments = tuple(
        replace(
            segment,
            seconds=observed.seconds.get(segment.index),
            failures=observed.failures.get(segment.index, ()),
        )
        for segment in report.segments
    )
    return replace(
        report,
        segments=segments,
        notes=(*report.notes, *observed.notes),
        plans=observed.plans,
        transfers=transfer_facts(observed.transfers),
    )
