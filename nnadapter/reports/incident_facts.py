"""What reports tell of the incidents of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnadapter.running.incidents import Incidents


def incident_facts(incidents: Incidents | None) -> Mapping[str, Any]:
    """Return the fields of a report that tell of incidents, by name; none where there is no session."""
    if incidents is None:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for (device, kind), number in sorted(incidents.counts.items()):
        counts.setdefault(device, {})[kind] = number
    return {"incidents": incidents.newest, "incident_counts": counts}
