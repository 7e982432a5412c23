"""Report of an engine, built from its plan or read from a stored plan."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nnadapter.engine.observed import PLAN_KEPT, KeptReport, Observed
from nnadapter.process.resources import cache_counts
from nnadapter.records import replace
from nnadapter.report.facts import CacheFacts, SegmentFacts, incident_facts, transfer_facts
from nnadapter.report.report import PartitionReport, report_from


def build_report(observed: Observed | KeptReport) -> PartitionReport:
    """Return an engine's report, built now or from a stored plan."""
    if isinstance(observed, KeptReport):
        return _stored(observed)
    from nnadapter.report.builder import report_of

    return report_of(observed)


_COMPILED = CacheFacts(hit=False, miss_reason="it was compiled again, because its driver cannot serialize it")


def _stored(observed: KeptReport) -> PartitionReport:
    report = report_from(json.loads(observed.contents))
    segments = tuple(
        replace(
            segment,
            seconds=observed.seconds.get(segment.index),
            failures=observed.failures.get(segment.index, ()),
            cache=_cache(segment, observed.cached or {}),
            # the earlier session's compile time would be misleading
            compile_seconds=segment.compile_seconds if observed.cached is None else None,
        )
        for segment in report.segments
    )
    return replace(
        report,
        segments=segments,
        notes=(*((PLAN_KEPT,) if observed.cached is not None else ()), *report.notes, *observed.notes),
        plans=observed.plans,
        caches=() if observed.plans is None else cache_counts(),
        isolated=report.isolated if observed.isolated is None else observed.isolated,
        transfers=transfer_facts(observed.transfers),
        **incident_facts(observed.incidents),
    )


def _cache(segment: SegmentFacts, cached: Mapping[int, bool]) -> CacheFacts | None:
    if segment.cache is None or segment.index not in cached:
        return segment.cache
    return CacheFacts(hit=True, miss_reason="") if cached[segment.index] else _COMPILED
