"""The refused nodes in groups, with what they cost where they run instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.reports.facts import NodeFacts, ReportFacts
from nnadapter.reports.units import duration, quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedGroup:
    """Nodes of one op type that a device refused for one reason."""

    device: str
    op_type: str
    reason: str
    """A code of `partition.Reason`."""
    nodes: int
    example: str
    """The first node's name."""
    detail: str
    """The reason in words, of the first node."""
    seconds: float | None
    """Predicted, of these nodes where they run; None unless it is known of each of them."""
    flops: int
    """As far as they are known."""

    @property
    def cost(self) -> str:
        """What they cost where they run, in words: seconds where known, else FLOPs; empty where neither is."""
        if self.seconds is not None:
            return duration(self.seconds)
        return quantity(self.flops, "FLOP") if self.flops else ""


def refused_groups(report: ReportFacts) -> tuple[RefusedGroup, ...]:
    """Return what was refused by device, op type and reason, most frequent first."""
    return tuple(_group(*key, nodes) for key, nodes in report.refusals().items())


def _group(device: str, op_type: str, reason: str, nodes: Sequence[NodeFacts]) -> RefusedGroup:
    detail = next(
        refusal.detail for refusal in nodes[0].refusals if (refusal.device, refusal.reason) == (device, reason)
    )
    times = [node.predicted_seconds for node in nodes if node.predicted_seconds is not None]
    return RefusedGroup(
        device=device,
        op_type=op_type,
        reason=reason,
        nodes=len(nodes),
        example=nodes[0].name,
        detail=detail,
        seconds=sum(times) if len(times) == len(nodes) else None,
        flops=sum(node.flops or 0 for node in nodes),
    )
