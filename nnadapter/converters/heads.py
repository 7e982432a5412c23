"""Attention heads that lie side by side in the last axis, taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.converters.context import ConversionContext
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_EXCHANGED = (0, 2, 1, 3)


def split_heads(context: ConversionContext, node: OnnxNode, name: str, heads: int) -> int:
    """Return `[B, S, heads * depth]` as `[B, heads, S, depth]`.

    Raises:
        Refusal: the last axis cannot be taken apart so.
    """
    dimensions = context.dimensions(name)
    if heads < 1 or len(dimensions) != 3 or dimensions[2] % heads:
        raise Refusal(
            Reason.INVALID_NODE, f"value {name!r} of {node.op_type} has shape {list(dimensions)} for {heads} heads"
        )
    shape = (*dimensions[:2], heads, dimensions[2] // heads)
    (apart,) = context.add("RESHAPE", (context.operand(name),), {"shape": shape})
    return context.add("TRANSPOSE", (apart,), {"perm": _EXCHANGED})[0]


def join_heads(context: ConversionContext, operand: int, outputs: Sequence[str]) -> None:
    """Give `[B, heads, S, depth]` as `[B, S, heads * depth]`, under the name in `outputs`."""
    batch, heads, steps, depth = context.type_of(operand).dimensions
    (exchanged,) = context.add("TRANSPOSE", (operand,), {"perm": _EXCHANGED})
    context.add("RESHAPE", (exchanged,), {"shape": (batch, steps, heads * depth)}, outputs)
