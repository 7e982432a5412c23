"""What changed between two reports, as facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nnadapter.reports.conditions import Condition
from nnadapter.reports.facts import ReportFacts

Place = str
"""A device, or `folded` or `unused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedNode:
    """A node that both reports have, in another place."""

    name: str
    op_type: str
    before: Place
    after: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalChange:
    """A device's refusals of an op type for one reason, whose number changed."""

    device: str
    op_type: str
    reason: str
    before: int
    """Nodes; 0 where the refusal is new."""
    after: int
    """Nodes; 0 where the refusal vanished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of both reports."""

    name: str
    before: float | None
    """None where the report does not know it."""
    after: float | None
    unit: str
    """`share` from 0 to 1, `B`, `s`, or empty for a count."""
    better: int
    """1 where more is better, -1 where less is, 0 where neither is, or the two cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class DifferenceFacts:
    """Two reports, and what differs; `Difference` adds the renderings."""

    old: ReportFacts
    new: ReportFacts
    conditions: tuple[Condition, ...]
    """What was not the same when they were made."""
    figures: tuple[Figure, ...]
    """Coverage, segments, switches, weights and cost, changed or not."""
    moved: tuple[MovedNode, ...]
    appeared: tuple[str, ...]
    """Names of nodes that only the new report has, in its order."""
    vanished: tuple[str, ...]
    """Names of nodes that only the old report has, in its order."""
    refusals: tuple[RefusalChange, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the reports themselves.

        Keys: `conditions`, `figures`, `moved`, `appeared`, `vanished`, `refusals`.
        """
        return {
            "conditions": [asdict(condition) for condition in self.conditions],
            "figures": [asdict(figure) for figure in self.figures],
            "moved": [asdict(node) for node in self.moved],
            "appeared": list(self.appeared),
            "vanished": list(self.vanished),
            "refusals": [asdict(change) for change in self.refusals],
        }
