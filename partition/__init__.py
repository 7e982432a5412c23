"""Graphs, device verdicts, placement, segments and plans. Imports no driver, and onnx nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partition.graph import (
        SUPPORTED,
        Graph,
        GraphError,
        Node,
        Reason,
        Supported,
        Unsupported,
        Value,
        Verdict,
        all_of,
    )
    from partition.plan import Cut, Plan, Segment, Step, check_order, cut, halve, make_plan, place_by_priority

_HOMES = {
    "Cut": "partition.plan",
    "Graph": "partition.graph",
    "GraphError": "partition.graph",
    "Node": "partition.graph",
    "Plan": "partition.plan",
    "Reason": "partition.graph",
    "SUPPORTED": "partition.graph",
    "Segment": "partition.plan",
    "Step": "partition.plan",
    "Supported": "partition.graph",
    "Unsupported": "partition.graph",
    "Value": "partition.graph",
    "Verdict": "partition.graph",
    "all_of": "partition.graph",
    "check_order": "partition.plan",
    "cut": "partition.plan",
    "halve": "partition.plan",
    "make_plan": "partition.plan",
    "place_by_priority": "partition.plan",
}

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
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'partition' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
