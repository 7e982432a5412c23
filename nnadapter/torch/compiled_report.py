"""Report of a compiled module or function: facts, text and HTML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from nnadapter.records import dataclass
from nnadapter.report.facts import plain
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import count, quantity

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackOperatorFacts:
    """Group of `count` equal operators that PyTorch runs or that a device refused."""

    operator: str
    device: str
    """Device that refused it; empty without a session."""
    reason: str
    """Code of `partition.Reason`."""
    detail: str
    line: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Facts of one graph."""

    kind: str
    """`inference`, `forward` or `backward`; `captured` if PyTorch failed to compile it."""
    operators: int
    """Number of ATen operators that compute, unlike views."""
    delegated: int
    """Number of computing ATen operators in sessions."""
    sessions: tuple[PartitionReport, ...]
    pending_regions: int
    fallback_operators: tuple[FallbackOperatorFacts, ...]
    refused_operators: tuple[FallbackOperatorFacts, ...]
    """Operators in sessions that a device refused."""
    graph_break_reason: str
    graph_break_line: str
    unfrozen_weights: int
    """Weights that changed too often to be constants."""
    input_bytes: int
    """Bytes of the sessions' inputs per call, without constants."""
    output_bytes: int
    to_device_bytes: int
    """Bytes copied to devices in the last call."""
    to_host_bytes: int
    separate_memory_devices: tuple[str, ...]
    """Devices with their own memory; other devices use PyTorch's memory."""
    device_memory_full: bool

    @property
    def nodes(self) -> tuple[int, int]:
        """Numbers of nodes on accelerators, and of all nodes that run."""
        counts = [_accelerated(report) for report in self.sessions]
        return sum(count for count, _ in counts), sum(count for _, count in counts)

    @property
    def flops(self) -> tuple[int, int]:
        totals = [sum(node.flops or 0 for node in report.nodes if node.state == "runs") for report in self.sessions]
        shares = [report.coverage.flops for report in self.sessions]
        return round(sum(share * total for share, total in zip(shares, totals, strict=True))), sum(totals)


@dataclass(frozen=True, kw_only=True)
class CompiledFacts:
    """Facts about a compiled module or function."""

    name: str
    graphs: tuple[GraphFacts, ...]
    uncaptured_module_types: tuple[str, ...] = ()
    """Types such as `LSTM` that PyTorch captures only if `allow_rnn` is set."""

    @property
    def breaks(self) -> tuple[GraphFacts, ...]:
        """Graphs, except backward ones, that end in a graph break."""
        return tuple(graph for graph in self.graphs if graph.graph_break_reason and graph.kind != "backward")

    @property
    def coverage(self) -> float:
        """Share of operators in sessions, from 0 to 1."""
        return _share(sum(graph.delegated for graph in self.graphs), sum(graph.operators for graph in self.graphs))

    @property
    def flops_coverage(self) -> float:
        """Share of the sessions' FLOPs on accelerators, from 0 to 1."""
        counts = [graph.flops for graph in self.graphs]
        return _share(sum(count for count, _ in counts), sum(count for _, count in counts))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data, with sessions as in `PartitionReport.to_dict`."""
        graphs = [
            {**plain_of(graph), "sessions": [report.to_dict() for report in graph.sessions]} for graph in self.graphs
        ]
        summary = {"schema_version": SCHEMA_VERSION, "name": self.name, "coverage": self.coverage}
        return {**summary, "uncaptured_module_types": list(self.uncaptured_module_types), "graphs": graphs}


def plain_of(graph: GraphFacts) -> Mapping[str, Any]:
    """Return the facts, except sessions, as plain data."""
    return {name: plain(getattr(graph, name)) for name in GraphFacts.__slots__ if name != "sessions"}


def gathered(operator_facts: list[FallbackOperatorFacts]) -> tuple[FallbackOperatorFacts, ...]:
    """Merge and count equal facts."""
    return tuple(
        FallbackOperatorFacts(**{**_fields(facts), "count": count}) for facts, count in Counter(operator_facts).items()
    )


def _fields(facts: FallbackOperatorFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in FallbackOperatorFacts.__slots__}


def _accelerated(report: PartitionReport) -> tuple[int, int]:
    running = sum(node.state == "runs" for node in report.nodes)
    return round(report.coverage.nodes * running), running


def _share(part: int, total: int) -> float:
    return part / total if total else 1.0


_SHOWN = 20


def to_text(report: CompiledFacts) -> str:
    """Return the report as text."""
    return "\n".join(
        (*_summary(report), *(line for numbered_graph in enumerate(report.graphs) for line in _graph(*numbered_graph)))
    )


def _summary(report: CompiledFacts) -> Iterator[str]:
    total, delegated = (
        sum(graph_facts.operators for graph_facts in report.graphs),
        sum(graph_facts.delegated for graph_facts in report.graphs),
    )
    yield f"compiled   {report.name}: {count(len(report.graphs), 'graph')}, {count(len(report.breaks), 'graph break')}"
    for kind in report.uncaptured_module_types:
        advice = "set torch._dynamo.config.allow_rnn = True before the first call to capture it"
        yield f"left out   {kind} runs in PyTorch: {advice}"
    if not report.graphs:
        if not report.uncaptured_module_types:
            yield "           nothing is compiled yet: PyTorch compiles on the first call"
        return
    yield f"operators  {total}: {delegated} in sessions, {total - delegated} in PyTorch"
    qualifier = (
        "known "
        if any(session.unknown_flops_nodes for graph_facts in report.graphs for session in graph_facts.sessions)
        else ""
    )
    flops = f"{report.flops_coverage:.1%} of their {qualifier}FLOPs off the CPU"
    yield f"coverage   {report.coverage:.1%} of operators in sessions; {flops}"
    for graph in report.breaks:
        yield f"break      {graph.graph_break_reason} ({graph.graph_break_line})"


def _graph(index: int, graph: GraphFacts) -> Iterator[str]:
    accelerated, running = graph.nodes
    yield ""
    yield f"graph {index}    {graph.kind}: {graph.delegated} of {count(graph.operators, 'operator')} in sessions"
    for session in graph.sessions:
        shapes = ", ".join(f"{name}{list(shape)}" for name, shape in list(session.input_shapes.items())[:4])
        yield f"  session  on {', '.join(session.devices)}: {shapes}"
    if graph.sessions:
        yield f"  nodes    {accelerated} of {running} off the CPU"
        passing = f"{quantity(graph.input_bytes, 'B')} in and {quantity(graph.output_bytes, 'B')} out in each call"
        yield f"  passes   {passing}, {_transfer_text(graph)}"
    if graph.device_memory_full:
        devices = " or ".join(graph.separate_memory_devices)
        yield f"  memory   {devices} had too little memory for resident values; they are transferred, and retried"
    if graph.pending_regions:
        yield f"  waiting  {count(graph.pending_regions, 'region')} not run yet"
    if graph.unfrozen_weights:
        yield f"  weights  {count(graph.unfrozen_weights, 'weight')} changed so often that they are inputs"
    yield from _rows("stayed", graph.fallback_operators)
    yield from _rows("refused", graph.refused_operators)


def _transfer_text(graph: GraphFacts) -> str:
    if not graph.separate_memory_devices:
        return "nothing copied"
    to_device, back = quantity(graph.to_device_bytes, "B"), quantity(graph.to_host_bytes, "B")
    return f"{to_device} copied to {', '.join(graph.separate_memory_devices)} and {back} back"


def _rows(title: str, rows: tuple[FallbackOperatorFacts, ...]) -> Iterator[str]:
    for row in rows[:_SHOWN]:
        where = f" ({row.line})" if row.line else ""
        by = f" by {row.device}" if title == "refused" else ""
        yield f"  {title:<8} {row.count} × {row.operator}{by}, {row.reason}: {row.detail}{where}"
    if len(rows) > _SHOWN:
        yield f"  {title:<8} and {len(rows) - _SHOWN} more"


_STYLE = (
    "body{font:14px sans-serif;margin:2em}pre{white-space:pre-wrap}"
    "iframe{width:100%;height:80vh;border:1px solid #ccc}summary{cursor:pointer;margin:.5em 0}"
)


def to_page(report: CompiledFacts) -> str:
    """Return a self-contained HTML page."""
    title = escape(f"{report.name}: PyTorch graphs")
    head = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    body = f"<h1>{title}</h1><pre>{escape(str(report))}</pre>{''.join(_sessions(report))}"
    return f"{head}</head><body>{body}</body></html>\n"


def _sessions(report: CompiledFacts) -> Iterator[str]:
    for place, graph in enumerate(report.graphs):
        for index, session in enumerate(graph.sessions):
            name = f"graph {place}, {graph.kind}, session {index}"
            page = escape(session.to_html(f"{report.name}: {name}"))
            frame = f'<iframe title="{escape(name)}" srcdoc="{page}"></iframe>'
            yield f"<details><summary>{escape(name)}</summary>{frame}</details>"


class TorchReport(CompiledFacts):
    """Report of a module or function that torch.compile compiled; `str` returns it as text."""

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """Return a self-contained HTML page with the pages of the sessions."""
        return to_page(self)

    def __str__(self) -> str:
        return to_text(self)
