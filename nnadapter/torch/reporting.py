"""What is known of a compiled module or function, as a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from nnadapter.drivers.selection import CPU
from nnadapter.engine.bound_steps import has_memory
from nnadapter.errors import InvalidOptionError
from nnadapter.inference.session import InferenceSession
from nnadapter.torch.backend import Capture, FallbackOperator, Graph, captures_of, failed_operators, original_callable
from nnadapter.torch.compiled_report import FallbackOperatorFacts, GraphFacts, TorchReport, gathered
from nnadapter.torch.exporting import origins
from nnadapter.torch.program import Program
from nnadapter.torch.resident_runs import added


def report_compiled(compiled: Any) -> TorchReport:
    """Return what became of a module or function; see `nnadapter.torch.report`.

    Raises:
        InvalidOptionError: it is nothing that can be compiled.
    """
    if not callable(compiled):
        raise InvalidOptionError(f"a report is of what torch.compile returned, got {type(compiled).__name__}")
    target = original_callable(compiled)
    tensors = (*target.parameters(), *target.buffers()) if isinstance(target, torch.nn.Module) else ()
    weights = frozenset(map(id, tensors))
    graphs = tuple(_graph(capture, graph, weights) for capture in captures_of(compiled) for graph in capture.graphs)
    return TorchReport(name=_name(target), graphs=graphs, uncaptured_module_types=_not_captured(target))


def _not_captured(target: Any) -> tuple[str, ...]:
    """Kinds of recurrent layers in a module, where PyTorch is not told to capture them."""
    if torch._dynamo.config.allow_rnn or not isinstance(target, torch.nn.Module):
        return ()
    layers = [module for module in target.modules() if isinstance(module, torch.nn.RNNBase)]
    return tuple(dict.fromkeys(type(layer).__name__ for layer in layers))


def _name(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)


def _graph(capture: Capture, graph: Graph, weights: frozenset[int]) -> GraphFacts:
    """The facts of a graph; where several modules share it, its sessions are those of the module with these weights."""
    programs = [leaf for program in graph.programs for leaf in program.leaves]
    program_sessions = [(program, program.sessions(weights)) for program in programs]
    refused = [facts for program, sessions in program_sessions for facts in _refused(program, sessions)]
    given_up = [fallback for program in programs for fallback in failed_operators(program)]
    moved = added(program.transferred_bytes for program in programs)
    return GraphFacts(
        kind=graph.kind,
        operators=graph.operators,
        delegated=graph.delegated - len(given_up),
        sessions=tuple(session.report() for _, sessions in program_sessions for session in sessions),
        pending_regions=sum(not sessions and program.failure is None for program, sessions in program_sessions),
        fallback_operators=gathered([_fallback_facts(fallback) for fallback in (*graph.fallback_operators, *given_up)]),
        refused_operators=gathered(refused),
        graph_break_reason=capture.ended,
        graph_break_line=capture.line,
        unfrozen_weights=sum(program.unfrozen_weights for program in programs),
        input_bytes=moved.input_bytes,
        output_bytes=moved.output_bytes,
        to_device_bytes=moved.to_device,
        to_host_bytes=moved.to_host,
        device_memory_full=any(program.is_crowded for program in programs),
        separate_memory_devices=_copying(session for _, sessions in program_sessions for session in sessions),
    )


def _copying(sessions: Iterable[InferenceSession]) -> tuple[str, ...]:
    names = dict.fromkeys(name for session in sessions for name in session.devices)
    return tuple(name for name in names if name != CPU and has_memory(name))


def _fallback_facts(fallback: FallbackOperator) -> FallbackOperatorFacts:
    return FallbackOperatorFacts(
        operator=fallback.operator,
        device="",
        reason=str(fallback.refusal.reason),
        detail=fallback.refusal.detail,
        line=fallback.line,
        count=1,
    )


def _refused(program: Program, sessions: Sequence[InferenceSession]) -> list[FallbackOperatorFacts]:
    """What devices refused of sessions, by the operators that their nodes come from."""
    node_origins = origins(program.model)
    return [
        FallbackOperatorFacts(
            operator=node_origins[node.name].operator,
            device=refusal.device,
            reason=refusal.reason,
            detail=refusal.detail,
            line=node_origins[node.name].line,
            count=1,
        )
        for session in sessions
        for node in session.report().nodes
        for refusal in node.refusals
        if node.name in node_origins
    ]
