"""What is known of a compiled module or function, as a report."""

from __future__ import annotations

from typing import Any

from nnadapter.errors import InvalidOptionError
from nnadapter.torch.compiled_report import TorchReport
from nnadapter.torch.exporting import origins
from nnadapter.torch.facts import GraphFacts, StayedFacts, gathered
from nnadapter.torch.graphs import Graph, Left, lost
from nnadapter.torch.program import Program
from nnadapter.torch.records import Capture, captures_of, given_of


def report_compiled(compiled: Any) -> TorchReport:
    """Return what became of a module or function; see `nnadapter.torch.report`.

    Raises:
        InvalidOptionError: it is nothing that can be compiled.
    """
    if not callable(compiled):
        raise InvalidOptionError(f"a report is of what torch.compile returned, got {type(compiled).__name__}")
    graphs = tuple(_graph(capture, graph) for capture in captures_of(compiled) for graph in capture.graphs)
    return TorchReport(name=_name(given_of(compiled)), graphs=graphs)


def _name(given: Any) -> str:
    return getattr(given, "__name__", type(given).__name__)


def _graph(capture: Capture, graph: Graph) -> GraphFacts:
    made = [(program, program.session) for program in graph.programs]
    refused = [facts for program in graph.programs for facts in _refused(program)]
    given_up = [left for program in graph.programs for left in lost(program)]
    return GraphFacts(
        kind=graph.kind,
        operators=graph.operators,
        delegated=graph.delegated - len(given_up),
        sessions=tuple(session.report() for _, session in made if session is not None),
        waiting=sum(session is None and program.failure is None for program, session in made),
        stayed=gathered([_stayed(left) for left in (*graph.left, *given_up)]),
        refused=gathered(refused),
        ended=capture.ended,
        line=capture.line,
        varying=sum(program.varying for program in graph.programs),
    )


def _stayed(left: Left) -> StayedFacts:
    return StayedFacts(
        operator=left.operator,
        device="",
        reason=str(left.refusal.reason),
        detail=left.refusal.detail,
        line=left.line,
        count=1,
    )


def _refused(program: Program) -> list[StayedFacts]:
    """What devices refused of a session, by the operators that its nodes come from."""
    known = origins(program.model)
    session = program.session
    nodes = session.report().nodes if session is not None else ()
    return [
        StayedFacts(
            operator=known[node.name].operator,
            device=refusal.device,
            reason=refusal.reason,
            detail=refusal.detail,
            line=known[node.name].line,
            count=1,
        )
        for node in nodes
        for refusal in node.refusals
        if node.name in known
    ]
