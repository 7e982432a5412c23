"""Converters of attention, rotary embeddings, linear attention and causal convolution."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.movement import parts_with_elements
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import ABSENT, AttributeValue, DataType

_EXCHANGED = (0, 2, 1, 3)


def split_heads(context: ConversionContext, node: OnnxNode, name: str, heads: int) -> int:
    """Return `[B, S, heads * depth]` as `[B, heads, S, depth]`, or raise Refusal."""
    dimensions = context.dimensions(name)
    if heads < 1 or len(dimensions) != 3 or dimensions[2] % heads:
        raise invalid(
            f"value {name!r} of {node.op_type} has shape {list(dimensions)}; "
            f"expected [batch, steps, features] with features divisible by the number of heads, {heads}"
        )
    shape = (*dimensions[:2], heads, dimensions[2] // heads)
    split = context.apply("RESHAPE", context.operand(name), shape=shape)
    return context.apply("TRANSPOSE", split, perm=_EXCHANGED)


def join_heads(context: ConversionContext, operand: int, outputs: Sequence[str]) -> None:
    """Transpose and reshape `[B, heads, S, depth]` to `[B, S, heads * depth]`, named by `outputs`."""
    batch, heads, steps, depth = context.type_of(operand).dimensions
    exchanged = context.apply("TRANSPOSE", operand, perm=_EXCHANGED)
    context.apply("RESHAPE", exchanged, outputs=outputs, shape=(batch, steps, heads * depth))


_STAGES = ("product", "capped", "masked", "softmax")


@converter("Attention", 23, 24, 25)
def convert_attention(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Attention to ATTENTION.

    1. Inputs of rank 3 are split into heads; past keys and values are concatenated unless empty.
    2. Since version 24, a short mask is padded to hide further keys.

    `softmax_precision` is ignored. Refused: past keys without values or with `nonpad_kv_seqlen`.
    """
    packed = context.rank(node) == 3
    query, key, value = _inputs(context, node, packed=packed)
    key, value, offset = _cached(context, node, key, value)
    inputs = [query, key, value, _mask(context, node, context.type_of(key).dimensions[2]), ABSENT]
    inputs[4] = context.optional_operand(node.input(6))
    while inputs[-1] == ABSENT:
        inputs.pop()
    attributes = _attributes(context, node, query, offset)
    if not packed:
        context.add("ATTENTION", inputs, attributes, (node.outputs[0], node.output(3)))
        return
    results = context.add("ATTENTION", inputs, attributes, ("", node.output(3)))
    join_heads(context, results[0], node.outputs[:1])


def _inputs(context: ConversionContext, node: OnnxNode, *, packed: bool) -> list[int]:
    heads = [node.integer(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    if packed:
        return [split_heads(context, node, node.input(position), heads[position]) for position in range(3)]
    if any(len(context.dimensions(node.input(position))) != 4 for position in range(3)):
        raise invalid("Q, K or V of Attention has a wrong rank; expected all of rank 3, or all of rank 4")
    return list(context.operands(node, 3))


def _cached(context: ConversionContext, node: OnnxNode, key: int, value: int) -> tuple[int, int, int]:
    past = node.input(4), node.input(5)
    if any(past) and (not all(past) or node.input(6)):
        raise invalid(
            "Attention has only one of past_key and past_value, or has nonpad_kv_seqlen too; expected both without it"
        )
    if not all(past):
        for operand, name in ((key, node.output(1)), (value, node.output(2))):
            if name:
                context.apply("ASSIGN", operand, outputs=(name,))
        return key, value, 0
    past_parts = parts_with_elements(context, past[:1], 2) and past
    joined = [
        context.apply(
            "CONCAT", *map(context.operand, past_parts[at : at + 1]), new_part, outputs=(node.output(1 + at),), axis=2
        )
        for at, new_part in enumerate((key, value))
    ]
    return joined[0], joined[1], context.dimensions(past[0])[2]


def _mask(context: ConversionContext, node: OnnxNode, keys: int) -> int:
    name = node.input(3)
    if not name:
        return ABSENT
    type_ = context.type_of(name)
    missing = keys - type_.dimensions[-1] if type_.rank else 0
    if node.since_version < 24 or missing <= 0:
        return context.operand(name)
    pads = (*(0,) * (2 * type_.rank - 1), missing)
    value = -float("inf") if type_.dtype.is_floating else 0.0
    return context.apply("PAD", context.operand(name), mode="constant", pads=pads, value=value)


def _attributes(context: ConversionContext, node: OnnxNode, query: int, offset: int) -> dict[str, AttributeValue]:
    depth = (0, *context.type_of(query).dimensions)[-1]
    mode = node.integer("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(_STAGES):
        raise invalid(f"attribute 'qk_matmul_output_mode' of Attention is {mode}; expected 0 to 3")
    return {
        "scale": node.number("scale", 1 / sqrt(depth) if depth else 1.0),
        "softcap": node.number("softcap", 0.0),
        "is_causal": node.integer("is_causal", 0) != 0,
        "offset": offset,
        "left_window": node.integer("left_window_size", -1),
        "right_window": node.integer("right_window_size", -1),
        "scores": _STAGES[mode] if node.output(3) else "none",
    }


@converter("FlexAttention", 1, domain="ai.onnx.preview")
def convert_flex_attention(context: ConversionContext, node: OnnxNode) -> None:
    """Convert ai.onnx.preview FlexAttention to ATTENTION. Refused: the graphs `score_mod` and `prob_mod`."""
    for name in ("score_mod", "prob_mod"):
        if name in node.attributes:
            raise Refusal(
                Reason.CONTROL_FLOW, f"attribute {name!r} of FlexAttention is a graph, which the adapter IR cannot hold"
            )
    depth = (0, *context.dimensions(node.input(0)))[-1]
    scale = node.number("scale", 1 / sqrt(depth) if depth else 1.0)
    context.add_for(node, "ATTENTION", {"scale": scale}, 3)


@converter("RotaryEmbedding", 23)
def convert_rotary_embedding(context: ConversionContext, node: OnnxNode) -> None:
    """Convert RotaryEmbedding to ROTARY_EMBEDDING; position ids select cosines and sines by GATHER."""
    packed = context.rank(node) == 3
    heads = node.integer("num_heads", 0)
    x = split_heads(context, node, node.input(0), heads) if packed else context.operand(node.input(0))
    tables = [_looked_up(context, node, position) for position in (1, 2)]
    part = node.integer("rotary_embedding_dim", 0) or (0, *context.type_of(x).dimensions)[-1]
    pairs = (0, *context.type_of(tables[0]).dimensions)[-1]
    if 2 * pairs != part:
        raise invalid(f"cos_cache of RotaryEmbedding has {pairs} columns; expected half of {part} rotated features")
    outputs, interleaved = () if packed else node.outputs, node.integer("interleaved", 0) != 0
    turned = context.apply("ROTARY_EMBEDDING", x, *tables, outputs=outputs, interleaved=interleaved)
    if packed:
        join_heads(context, turned, node.outputs)


def _looked_up(context: ConversionContext, node: OnnxNode, position: int) -> int:
    cache = context.operand(node.input(position))
    if not node.input(3):
        return cache
    return context.apply("GATHER", cache, context.operand(node.input(3)), axis=0)


@converter("LinearAttention", 27)
def convert_linear_attention(context: ConversionContext, node: OnnxNode) -> None:
    """Convert LinearAttention to LINEAR_ATTENTION; `chunk_size` does not affect results."""
    heads = node.integer("q_num_heads")
    width = (0, *context.dimensions(node.input(0)))[-1]
    depth = width // heads if heads > 0 else 0
    context.add_for(
        node,
        "LINEAR_ATTENTION",
        {
            "query_heads": heads,
            "key_value_heads": node.integer("kv_num_heads"),
            "scale": node.number("scale", 0.0) or (1 / sqrt(depth) if depth else 1.0),
            "update_rule": node.text("update_rule", "gated_delta"),
        },
        3,
        3,
    )


@converter("CausalConvWithState", 27)
def convert_causal_convolution(context: ConversionContext, node: OnnxNode) -> None:
    """Convert CausalConvWithState to CAUSAL_CONV."""
    activation = node.text("activation", "none")
    attributes = {"activation": "swish" if activation == "silu" else activation}
    context.add_for(node, "CAUSAL_CONV", attributes, 2, 2)


@exporter("ATTENTION")
def export_attention(write: NodeWriter) -> Sequence[str]:
    """Export ATTENTION as Attention (24, or 25 for windows with sequence lengths).

    Without sequence lengths, causal offsets and windows become a mask: ONNX expresses offsets by past keys only.
    Refused: any masking if `without_keys` is `nan`, since ONNX returns zeros.
    """
    of = write.operation
    query, key, value, mask, lengths = write.inputs
    _check_empty(write)
    windows = {"left_window_size": of.left_window, "right_window_size": of.right_window}
    stated = {name: size for name, size in windows.items() if size >= 0}
    is_causal, mask = of.is_causal, _spread(write, mask)
    if not lengths and (stated or (is_causal and of.offset)):
        is_causal, stated, mask = False, {}, _with_band(write, mask)
    if of.scale < 0:  # ONNX Runtime takes the root of the scale
        query = write.node("Neg", query)
    scores = of.scores != "none"
    results = write.nodes(
        "Attention",
        (query, key, value, mask, "", "", write.cast(lengths, DataType.INT64) if lengths else ""),
        4 if scores else 1,
        absent=(1, 2),
        opset=25 if stated else 0,
        scale=abs(of.scale),
        softcap=max(0.0, of.softcap),
        is_causal=is_causal,
        qk_matmul_output_mode=_STAGES.index(of.scores) if scores else None,
        **stated,
    )
    return (results[0], results[3]) if scores else results


def _sizes(write: NodeWriter) -> tuple[int, int]:
    keys: int = write.operation.key.type.dimensions[2]
    return write.type.dimensions[2], keys


def _spread(write: NodeWriter, mask: str) -> str:
    """Expand a mask to all queries and keys: ONNX hides keys beyond a shorter mask."""
    if not mask:
        return mask
    full_sizes, dimensions = _sizes(write), write.operation.mask.type.dimensions
    if dimensions[-2:] == full_sizes:
        return mask
    return write.node("Expand", mask, write.integers(*dimensions[:-2], *full_sizes))


def _with_band(write: NodeWriter, mask: str) -> str:
    """Return a mask with causality and windows, computed at run time because a constant would be large."""
    of = write.operation
    queries, keys = write.static_sizes(_sizes(write))
    places = write.node("Unsqueeze", _places(write, of.offset, queries), write.integers(1))
    distance = write.node("Sub", _places(write, 0, keys), places)
    right = min((limit for limit in (0 if of.is_causal else -1, of.right_window) if limit >= 0), default=None)
    bounds = (("LessOrEqual", right), ("GreaterOrEqual", -of.left_window if of.left_window >= 0 else None))
    sides = [write.node(op, distance, write.number(limit, DataType.INT64)) for op, limit in bounds if limit is not None]
    allowed = sides[0] if len(sides) == 1 else write.node("And", *sides)
    if not mask:
        return allowed
    if write.dtype_of(mask) is DataType.BOOL:
        return write.node("And", mask, allowed)
    dtype = write.dtype_of(mask) or DataType.FLOAT32
    return write.node("Where", allowed, mask, write.number(-np.inf, dtype))


def _places(write: NodeWriter, first: int, count: int) -> str:
    return write.node("Range", *(write.number(limit, DataType.INT64) for limit in (first, first + count, 1)))


def _check_empty(write: NodeWriter) -> None:
    of = write.operation
    masks = of.mask is not None or of.lengths is not None or of.is_causal or max(of.left_window, of.right_window) >= 0
    if of.without_keys == "nan" and masks:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            "attribute 'without_keys' of ATTENTION is 'nan'; expected 'zero', because ONNX's Attention returns zeros "
            "for queries without keys",
        )


@exporter("ROTARY_EMBEDDING")
def export_rotary_embedding(write: NodeWriter) -> str:
    """Export ROTARY_EMBEDDING as RotaryEmbedding."""
    of = write.operation
    part = 2 * of.cosine.type.dimensions[2]
    rotates_all = part == write.type.dimensions[3]
    tables = [_rows(write, position) for position in (1, 2)]
    return write.node(
        "RotaryEmbedding",
        write.inputs[0],
        *tables,
        interleaved=of.interleaved,
        rotary_embedding_dim=None if rotates_all else part,
    )


def _rows(write: NodeWriter, position: int) -> str:
    """Expand cosines or sines to the batch, which ONNX does not broadcast."""
    type_ = write.types[position]
    assert type_ is not None, "both are required"
    batch, _, steps, _ = write.type.dimensions
    full_shape = (batch, steps, type_.dimensions[2])
    if type_.dimensions == full_shape:
        return write.inputs[position]
    return write.node("Expand", write.inputs[position], write.integers(*full_shape))
