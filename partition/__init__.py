"""Graphs, verdicts, placement, segments and plans: what decides which device runs what.

This package knows no device and no driver. What needs onnx (`nnadapter.onnx.graphs` and its like) is imported by
its own name.
"""

from partition.graph import Graph, GraphError, Node, Value
from partition.placement import place_by_priority
from partition.plan import Plan, Step, make_plan
from partition.segments import Cut, Segment, check_order, cut, halve
from partition.verdict import SUPPORTED, Reason, Supported, Unsupported, Verdict, all_of

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
