"""Running products and Hardmax: what looks along one axis and keeps it."""

from __future__ import annotations

from nnadapter.converters.axes import normalize_axis, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.converters.softmax import along_axis, over_matrix
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("CumProd", 26)
def convert_cum_prod(context: ConversionContext, node: OnnxNode) -> None:
    """CumProd along a constant axis. Source: ONNX CumProd-26."""
    axes = required_integers(context, node, 1)
    if len(axes) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input 1 of CumProd has {len(axes)} elements; expected one axis")
    axis = normalize_axis(node, axes[0], len(context.dimensions(node.input(0))))
    flags = {name: bool(node.integer(name, 0)) for name in ("exclusive", "reverse")}
    context.add("CUM_PROD", (context.operand(node.input(0)),), {"axis": axis, **flags}, node.outputs)


@converter("Hardmax", 13)
def convert_hardmax(context: ConversionContext, node: OnnxNode) -> None:
    """Hardmax along one axis, the last by default. Source: ONNX Hardmax-13."""
    along_axis("HARDMAX", context, node)


@converter("Hardmax", 1, 11)
def convert_hardmax_of_matrix(context: ConversionContext, node: OnnxNode) -> None:
    """Hardmax over all axes from one on together, the second by default. Source: ONNX Hardmax-11."""
    over_matrix("HARDMAX", context, node)
