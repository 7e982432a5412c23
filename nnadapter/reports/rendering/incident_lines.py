"""The incidents of a session in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.facts import ReportFacts


def incident_lines(report: ReportFacts) -> Iterator[str]:
    """Yield a line for each device and kind of error: how often it happened, and the last time in words."""
    last = {(incident_facts.device, incident_facts.kind): incident_facts for incident_facts in report.incidents}
    for device, kinds in report.incident_counts.items():
        for kind, number in kinds.items():
            incident = last.get((device, kind))
            said = "" if incident is None else f": {incident.message}; {incident.instead}"
            yield f"{device}: {kind} x{number}{said}"
