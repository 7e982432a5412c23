"""Layers that carry a state along a sequence: linear attention, causal convolution."""

from __future__ import annotations

from math import sqrt

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.model import ABSENT
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode


def _operands(context: ConversionContext, node: OnnxNode) -> list[int]:
    inputs = [context.optional_operand(name) for name in node.inputs]
    while inputs and inputs[-1] == ABSENT:
        inputs.pop()
    return inputs


@converter("LinearAttention", 27)
def convert_linear_attention(context: ConversionContext, node: OnnxNode) -> None:
    """LinearAttention; `chunk_size` says how to compute, not what. Source: ONNX LinearAttention-27."""
    heads = node.integer("q_num_heads")
    width = (0, *context.dimensions(node.input(0)))[-1]
    depth = width // heads if heads > 0 else 0
    attributes: dict[str, AttributeValue] = {
        "query_heads": heads,
        "key_value_heads": node.integer("kv_num_heads"),
        "scale": node.number("scale", 0.0) or (1 / sqrt(depth) if depth else 1.0),
        "update_rule": node.text("update_rule", "gated_delta"),
    }
    context.add("LINEAR_ATTENTION", _operands(context, node), attributes, node.outputs)


@converter("CausalConvWithState", 27)
def convert_causal_convolution(context: ConversionContext, node: OnnxNode) -> None:
    """CausalConvWithState; `silu` is another name of `swish`. Source: ONNX CausalConvWithState-27."""
    activation = node.text("activation", "none")
    attributes = {"activation": "swish" if activation == "silu" else activation}
    context.add("CAUSAL_CONV", _operands(context, node), attributes, node.outputs)
