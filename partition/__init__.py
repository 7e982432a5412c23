"""Graphs, device verdicts, placement, segments and plans, without imports of drivers and onnx."""

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

_MODULES = {
    "partition.graph": "Graph GraphError Node Reason SUPPORTED Supported Unsupported Value Verdict all_of",
    "partition.plan": "Cut Plan Segment Step check_order cut halve make_plan place_by_priority",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

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
