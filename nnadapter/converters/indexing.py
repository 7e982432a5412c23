"""Choosing elements by position or by value, and running sums."""

from __future__ import annotations

from functools import partial

from nnadapter.converters.axes import normalize_axis, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


def _gather(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add(type_, inputs, {"axis": _axis(context, node, 0)}, node.outputs)


def _argument(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    """`select_last_index` exists since version 12."""
    attributes: dict[str, AttributeValue] = {
        "axis": _axis(context, node, 0),
        "keepdims": bool(node.integer("keepdims", 1)),
        "select_last_index": bool(node.integer("select_last_index", 0)),
    }
    context.add(type_, (context.operand(node.input(0)),), attributes, node.outputs)


def _axis(context: ConversionContext, node: OnnxNode, default: int) -> int:
    return normalize_axis(node, node.integer("axis", default), len(context.dimensions(node.input(0))))


converter("Gather", 1, 11, 13)(partial(_gather, "GATHER"))
converter("GatherElements", 11, 13)(partial(_gather, "GATHER_ELEMENTS"))
converter("ArgMax", 1, 11, 12, 13)(partial(_argument, "ARG_MAX"))
converter("ArgMin", 1, 11, 12, 13)(partial(_argument, "ARG_MIN"))


@converter("TopK", 1)
def convert_top_k_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """TopK with k in an attribute: the largest, sorted. Source: ONNX TopK-1."""
    _add_top_k(context, node, node.integer("k"))


@converter("TopK", 10, 11, 24)
def convert_top_k(context: ConversionContext, node: OnnxNode) -> None:
    """TopK with k in an input; `largest` and `sorted` exist since version 11. Source: ONNX TopK-11."""
    (k,) = _one(context, node, 1)
    _add_top_k(context, node, k)


def _add_top_k(context: ConversionContext, node: OnnxNode, k: int) -> None:
    attributes: dict[str, AttributeValue] = {
        "k": k,
        "axis": _axis(context, node, -1),
        "largest": bool(node.integer("largest", 1)),
        "sorted": bool(node.integer("sorted", 1)),
    }
    context.add("TOP_K", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("CumSum", 11, 14)
def convert_cum_sum(context: ConversionContext, node: OnnxNode) -> None:
    """CumSum with a constant axis. Source: ONNX CumSum-14."""
    (axis,) = _one(context, node, 1)
    attributes: dict[str, AttributeValue] = {
        "axis": normalize_axis(node, axis, len(context.dimensions(node.input(0)))),
        "exclusive": bool(node.integer("exclusive", 0)),
        "reverse": bool(node.integer("reverse", 0)),
    }
    context.add("CUM_SUM", (context.operand(node.input(0)),), attributes, node.outputs)


def _one(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int]:
    values = required_integers(context, node, position)
    if len(values) != 1:
        raise Refusal(
            Reason.INVALID_NODE, f"input {position} of {node.op_type} is {list(values)}; expected one integer"
        )
    return (values[0],)
