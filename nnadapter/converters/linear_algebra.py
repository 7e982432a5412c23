"""Small linear algebra: triangles, determinants, sums of products by an equation."""

from __future__ import annotations

import numpy as np

from nnadapter.converters.axes import constant_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("Trilu", 14)
def convert_trilu(context: ConversionContext, node: OnnxNode) -> None:
    """Trilu: TRILU if the number of the diagonal is known, else a choice between the elements and 0.

    Source: ONNX Trilu-14.
    """
    upper, diagonal = bool(node.integer("upper", 1)), node.input(1)
    if diagonal and not context.is_constant(diagonal):
        _select_triangle(context, node, "LESS" if upper else "GREATER")
        return
    offsets = constant_integers(context, node, 1)
    if offsets is not None and len(offsets) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input 1 of Trilu has {len(offsets)} elements; expected one")
    attributes = {"upper": upper, "k": 0 if offsets is None else offsets[0]}
    context.add("TRILU", (context.operand(node.input(0)),), attributes, node.outputs)


def _select_triangle(context: ConversionContext, node: OnnxNode, beyond: str) -> None:
    """Each element's distance from the main diagonal is compared with the number of the diagonal."""
    source, diagonal = (context.operand(node.input(position)) for position in range(2))
    type_, number = context.type_of(source), context.type_of(diagonal)
    if type_.rank < 2 or number.size != 1 or number.rank > 1:
        raise Refusal(Reason.INVALID_NODE, f"inputs of Trilu are {type_} and {number}; expected matrices and a scalar")
    rows, columns = (np.arange(size, dtype=np.dtype(number.dtype)) for size in type_.dimensions[-2:])
    gone = context.add(beyond, (context.add_constant(columns - rows[:, None]), diagonal))
    zero = context.add_constant(np.zeros((), np.dtype(type_.dtype)))
    context.add("WHERE", (*gone, zero, source), outputs=node.outputs)


@converter("Det", 11, 22)
def convert_det(context: ConversionContext, node: OnnxNode) -> None:
    """Det of square matrices. Source: ONNX Det-22."""
    context.add("DETERMINANT", (context.operand(node.input(0)),), outputs=node.outputs)


@converter("Einsum", 12, 28)
def convert_einsum(context: ConversionContext, node: OnnxNode) -> None:
    """Einsum; the two versions differ in data types alone. Source: ONNX Einsum-28."""
    if not node.inputs:
        raise Refusal(Reason.INVALID_NODE, "Einsum has no inputs; expected one or more")
    attributes = {"equation": node.text("equation", "")}
    context.add("EINSUM", tuple(map(context.operand, node.inputs)), attributes, node.outputs)
