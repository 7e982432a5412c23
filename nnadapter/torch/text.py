"""The report of a compiled module as text."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.units import count, quantity
from nnadapter.torch.facts import CompiledFacts, GraphFacts, StayedFacts

_SHOWN = 20


def to_text(report: CompiledFacts) -> str:
    """Return the report as lines of text.

    1. Summary: graphs, graph breaks, how many operators are in sessions.
    2. For each graph what stayed in PyTorch, and what devices refused of its sessions, with lines of source.
    """
    return "\n".join(
        (*_summary(report), *(line for numbered_graph in enumerate(report.graphs) for line in _graph(*numbered_graph)))
    )


def _summary(report: CompiledFacts) -> Iterator[str]:
    total, delegated = (
        sum(graph_facts.operators for graph_facts in report.graphs),
        sum(graph_facts.delegated for graph_facts in report.graphs),
    )
    yield f"compiled   {report.name}: {count(len(report.graphs), 'graph')}, {count(len(report.breaks), 'graph break')}"
    for kind in report.not_captured:
        advice = "set torch._dynamo.config.allow_rnn = True before the first call, and PyTorch captures it"
        yield f"left out   {kind} runs in PyTorch: {advice}"
    if not report.graphs:
        yield "           nothing was compiled yet: PyTorch compiles when it is called"
        return
    yield f"operators  {total}: {delegated} in sessions, {total - delegated} in PyTorch"
    qualifier = (
        "known " if any(session.uncounted for graph_facts in report.graphs for session in graph_facts.sessions) else ""
    )
    flops = f"{report.flops_coverage:.1%} of their {qualifier}FLOPs off the CPU"
    yield f"coverage   {report.coverage:.1%} of operators in sessions; {flops}"
    for graph in report.breaks:
        yield f"break      {graph.ended} ({graph.line})"


def _graph(index: int, graph: GraphFacts) -> Iterator[str]:
    accelerated, running = graph.nodes
    yield ""
    yield f"graph {index}    {graph.kind}: {graph.delegated} of {count(graph.operators, 'operator')} in sessions"
    for session in graph.sessions:
        shapes = ", ".join(f"{name}{list(shape)}" for name, shape in list(session.input_shapes.items())[:4])
        yield f"  session  on {', '.join(session.devices)}: {shapes}"
    if graph.sessions:
        yield f"  nodes    {accelerated} of {running} off the CPU"
        passing = f"{quantity(graph.taken_bytes, 'B')} in and {quantity(graph.given_bytes, 'B')} out in each call"
        yield f"  passes   {passing}, {_moved(graph)}"
    if graph.crowded:
        yield f"  memory   {' or '.join(graph.copying)} had no room for what stays there: it passes, and is tried again"
    if graph.waiting:
        yield f"  waiting  {count(graph.waiting, 'region')} not run yet"
    if graph.varying:
        yield f"  weights  {count(graph.varying, 'weight')} changed so often that they are inputs"
    yield from _rows("stayed", graph.stayed)
    yield from _rows("refused", graph.refused)


def _moved(graph: GraphFacts) -> str:
    if not graph.copying:
        return "nothing copied"
    to_device, back = quantity(graph.to_device_bytes, "B"), quantity(graph.to_host_bytes, "B")
    return f"of which {to_device} are copied to {', '.join(graph.copying)} and {back} back"


def _rows(title: str, rows: tuple[StayedFacts, ...]) -> Iterator[str]:
    for row in rows[:_SHOWN]:
        where = f" ({row.line})" if row.line else ""
        by = f" by {row.device}" if title == "refused" else ""
        yield f"  {title:<8} {row.count} × {row.operator}{by}, {row.reason}: {row.detail}{where}"
    if len(rows) > _SHOWN:
        yield f"  {title:<8} and {len(rows) - _SHOWN} more"
