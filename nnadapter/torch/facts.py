"""What became of a compiled module or function: graphs, sessions, and what stayed in PyTorch, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnadapter.reports.plain import plain
from nnadapter.reports.report import PartitionReport

SCHEMA_VERSION = 1
"""Of the JSON form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StayedFacts:
    """Operators that stayed in PyTorch for one reason, at one line; or that their session ran on the CPU."""

    operator: str
    """As `aten.NAME.OVERLOAD`."""
    device: str
    """The device that refused it; empty where it did not come to a session."""
    reason: str
    """A code of `partition.Reason`."""
    detail: str
    line: str
    """`FILE:LINE` of the person's source; empty where it is not known."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """One graph."""

    kind: str
    """`inference`, `forward` or `backward`."""
    operators: int
    """How many operators of ATen do work, in all."""
    delegated: int
    """How many of these are in sessions."""
    sessions: tuple[PartitionReport, ...]
    """The reports of its sessions, those of regions that were not run yet left out."""
    waiting: int
    """Regions that were not run yet, and so have no session."""
    stayed: tuple[StayedFacts, ...]
    """What stayed in PyTorch."""
    refused: tuple[StayedFacts, ...]
    """What is in sessions, and a device of them did not take."""
    ended: str
    """Why the graph ends before the function does (a graph break); empty where it does not."""
    line: str
    """Where it ends so."""
    varying: int
    """Weights that changed so often that they are inputs."""
    taken_bytes: int
    """What goes into its sessions in each call; weights that are constants do not."""
    given_bytes: int
    """What comes out of them."""
    to_device_bytes: int
    """What of it was copied to devices that have memory of their own, in the last call."""
    to_host_bytes: int
    """What was copied from them."""
    copying: tuple[str, ...]
    """These devices. To others, and to the CPU, tensors are handed over in the memory where they lie."""
    crowded: bool
    """One of these devices had no room for what stays there between graphs, when it was last tried."""

    @property
    def nodes(self) -> tuple[int, int]:
        """Nodes of its sessions that run on accelerators, and all that run."""
        counts = [_accelerated(report) for report in self.sessions]
        return sum(count for count, _ in counts), sum(count for _, count in counts)

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs of its sessions on accelerators, and all of theirs."""
        totals = [sum(node.flops or 0 for node in report.nodes if node.state == "runs") for report in self.sessions]
        shares = [report.coverage.flops for report in self.sessions]
        return round(sum(share * total for share, total in zip(shares, totals, strict=True))), sum(totals)


@dataclass(frozen=True, kw_only=True)
class CompiledFacts:
    """What became of what torch.compile was given; `TorchReport` adds the renderings."""

    name: str
    """The module's class, or the function's name."""
    graphs: tuple[GraphFacts, ...]
    """In the order in which they were compiled."""
    not_captured: tuple[str, ...] = ()
    """Kinds of modules in it, as `LSTM`, that PyTorch captures only where it is told to."""

    @property
    def breaks(self) -> tuple[GraphFacts, ...]:
        """The graphs that end before the function does."""
        return tuple(graph for graph in self.graphs if graph.ended and graph.kind != "backward")

    @property
    def coverage(self) -> float:
        """Share of operators that sessions run, from 0 to 1."""
        return _share(sum(graph.delegated for graph in self.graphs), sum(graph.operators for graph in self.graphs))

    @property
    def flops_coverage(self) -> float:
        """Share of the sessions' FLOPs on accelerators, from 0 to 1."""
        counts = [graph.flops for graph in self.graphs]
        return _share(sum(count for count, _ in counts), sum(count for _, count in counts))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: the fields of the classes of this file, sessions as `PartitionReport.to_dict`."""
        graphs = [
            {**plain_of(graph), "sessions": [report.to_dict() for report in graph.sessions]} for graph in self.graphs
        ]
        summary = {"schema_version": SCHEMA_VERSION, "name": self.name, "coverage": self.coverage}
        return {**summary, "not_captured": list(self.not_captured), "graphs": graphs}


def plain_of(graph: GraphFacts) -> Mapping[str, Any]:
    """The facts of a graph without its sessions, as plain data."""
    names = (
        "kind",
        "operators",
        "delegated",
        "waiting",
        "stayed",
        "refused",
        "ended",
        "line",
        "varying",
        "taken_bytes",
        "given_bytes",
        "to_device_bytes",
        "to_host_bytes",
        "crowded",
        "copying",
    )
    return {name: plain(getattr(graph, name)) for name in names}


def gathered(operator_facts: list[StayedFacts]) -> tuple[StayedFacts, ...]:
    """Return what is said of single operators with equal ones counted together, in the order in which they come."""
    return tuple(StayedFacts(**{**_fields(facts), "count": count}) for facts, count in Counter(operator_facts).items())


def _fields(facts: StayedFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in StayedFacts.__slots__}


def _accelerated(report: PartitionReport) -> tuple[int, int]:
    running = sum(node.state == "runs" for node in report.nodes)
    return round(report.coverage.nodes * running), running


def _share(part: int, total: int) -> float:
    return part / total if total else 1.0
