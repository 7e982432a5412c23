"""Graphs, verdicts, placement, segments and plans: what decides which device runs what.

This package knows no device and no driver. What needs onnx (`nnadapter.onnx.graphs` and its like) is imported by
its own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partition.graph import Graph, GraphError, Node, Value
    from partition.plan import Plan, Step, make_plan
    from partition.segments import Cut, Segment, check_order, cut, halve, place_by_priority
    from partition.verdict import SUPPORTED, Reason, Supported, Unsupported, Verdict, all_of

_HOMES = {
    "Cut": "partition.segments",
    "Graph": "partition.graph",
    "GraphError": "partition.graph",
    "Node": "partition.graph",
    "Plan": "partition.plan",
    "Reason": "partition.verdict",
    "SUPPORTED": "partition.verdict",
    "Segment": "partition.segments",
    "Step": "partition.plan",
    "Supported": "partition.verdict",
    "Unsupported": "partition.verdict",
    "Value": "partition.graph",
    "Verdict": "partition.verdict",
    "all_of": "partition.verdict",
    "check_order": "partition.segments",
    "cut": "partition.segments",
    "halve": "partition.segments",
    "make_plan": "partition.plan",
    "place_by_priority": "partition.segments",
}
"""Where each public name lives."""

__all__ = [
    "SUPPORTED",
    "Cut",
    "Graph",
    "GraphError",
    "Node",
    "Plan",
    "Reason",
    "Segment",
    "Step",
    "Supported",
    "Unsupported",
    "Value",
    "Verdict",
    "all_of",
    "check_order",
    "cut",
    "halve",
    "make_plan",
    "place_by_priority",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'partition' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
