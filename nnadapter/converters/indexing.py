"""Converters of gathering, scattering, TopK, ArgMax and running sums."""

from __future__ import annotations

from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext, normalize_axis, required_integers
from nnadapter.converters.registry import converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.model import OnnxNode
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


@converter("GatherND", 11, 12, 13)
def convert_gather_nd(context: ConversionContext, node: OnnxNode) -> None:
    """GatherND; `batch_dims` exists since version 12. Source: ONNX GatherND-13."""
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("GATHER_ND", inputs, {"batch_dims": node.integer("batch_dims", 0)}, node.outputs)


@converter("Scatter", 9)
@converter("ScatterElements", 11, 13, 16, 18)
def convert_scatter_elements(context: ConversionContext, node: OnnxNode) -> None:
    """ScatterElements, and Scatter as it was called until version 11 took it away. Source: ONNX ScatterElements-18.

    `reduction` exists since version 16.
    """
    attributes: dict[str, AttributeValue] = {
        "axis": _named_axis(context, node, "axis", 0),
        "reduction": node.text("reduction", "none"),
    }
    context.add("SCATTER_ELEMENTS", _operands(context, node), attributes, node.outputs)


@converter("ScatterND", 11, 13, 16, 18)
def convert_scatter_nd(context: ConversionContext, node: OnnxNode) -> None:
    """ScatterND; `reduction` exists since version 16. Source: ONNX ScatterND-18."""
    context.add("SCATTER_ND", _operands(context, node), {"reduction": node.text("reduction", "none")}, node.outputs)


@converter("TensorScatter", 24)
def convert_tensor_scatter(context: ConversionContext, node: OnnxNode) -> None:
    """TensorScatter. Source: ONNX TensorScatter-24."""
    attributes: dict[str, AttributeValue] = {
        "axis": _named_axis(context, node, "axis", -2),
        "mode": node.text("mode", "linear"),
    }
    indices = (context.operand(node.input(2)),) if node.input(2) else ()
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)), *indices)
    context.add("TENSOR_SCATTER", inputs, attributes, node.outputs)


@converter("OneHot", 9, 11, 28)
def convert_one_hot(context: ConversionContext, node: OnnxNode) -> None:
    """OneHot with a constant depth. Source: ONNX OneHot-11.

    For version 9, ONNX calls negative indices out of range; ONNX Runtime counts them from the end in every version,
    and so does this.
    """
    rank = len(context.dimensions(node.input(0)))
    attributes: dict[str, AttributeValue] = {
        "axis": normalize_axis(node, node.integer("axis", -1), rank + 1),
        "depth": _depth(context, node),
    }
    inputs = (context.operand(node.input(0)), context.operand(node.input(2)))
    context.add("ONE_HOT", inputs, attributes, node.outputs)


def _depth(context: ConversionContext, node: OnnxNode) -> int:
    """The one number of the input `depth`, which may be of any data type."""
    name = node.input(1)
    values = context.integers(name)
    if values is None:
        array = context.constant(name).reshape(-1)
        values = tuple(int(value) for value in array[np.isfinite(array)])
    if len(values) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input 'depth' of OneHot is {list(values)}; expected one number")
    return values[0]


@converter("ReverseSequence", 10, 28)
def convert_reverse_sequence(context: ConversionContext, node: OnnxNode) -> None:
    """ReverseSequence. Source: ONNX ReverseSequence-10."""
    attributes: dict[str, AttributeValue] = {
        "batch_axis": _named_axis(context, node, "batch_axis", 1),
        "time_axis": _named_axis(context, node, "time_axis", 0),
    }
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("REVERSE_SEQUENCE", inputs, attributes, node.outputs)


def _named_axis(context: ConversionContext, node: OnnxNode, name: str, default: int) -> int:
    return normalize_axis(node, node.integer(name, default), len(context.dimensions(node.input(0))))


def _operands(context: ConversionContext, node: OnnxNode) -> tuple[int, int, int]:
    first, indices, updates = (context.operand(node.input(position)) for position in range(3))
    return first, indices, updates
