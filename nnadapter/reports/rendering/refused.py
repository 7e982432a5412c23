"""The refused nodes in groups, with what they cost where they run instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nnadapter.reports.cost_facts import RefusalCost
from nnadapter.reports.facts import NodeFacts, ReportFacts
from nnadapter.reports.units import count, foretold, quantity


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
    guessed: bool = False
    """Seconds rest on costs that nobody measured."""
    caused: RefusalCost | None = None
    """What the refusals cause between devices, where that was tried."""

    @property
    def cost(self) -> str:
        """What they cost where they run, in words: seconds where known, else FLOPs; empty where neither is."""
        if self.seconds is not None:
            return foretold(self.seconds, self.guessed)
        return quantity(self.flops, "FLOP") if self.flops else ""

    @property
    def switching(self) -> float:
        """Predicted seconds of what they cause between devices; 0 where it is not known."""
        return max(0.0, self.caused.seconds or 0.0) if self.caused is not None else 0.0

    @property
    def between(self) -> str:
        """What they cause between devices, in words: `12 switches, 1.20 ms together`; empty if nothing."""
        if self.caused is None or self.caused.switches <= 0:
            return ""
        times = f", {foretold(self.switching, self.guessed)} together" if self.switching else ""
        return count(self.caused.switches, "switch", "switches") + times


def refused_groups(report: ReportFacts) -> tuple[RefusedGroup, ...]:
    """Return what was refused by device, op type and reason, most frequent first."""
    guesses = report.guesses
    caused = {
        (refusal_cost.device, refusal_cost.op_type, refusal_cost.reason): refusal_cost
        for refusal_cost in report.refusal_costs
    }
    return tuple(
        replace(
            _group(*key, nodes),
            caused=caused.get(key),
            guessed=any(node.device in guesses for node in nodes),
        )
        for key, nodes in report.refusals().items()
    )


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
