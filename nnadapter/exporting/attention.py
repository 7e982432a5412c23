"""Attention, and the layers that stand around it or in its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.exporting.writer import NodeWriter, exporter, known_sizes
from nnadapter.ir.operand import DataType
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_STAGES = ("product", "capped", "masked", "softmax")
"""What `qk_matmul_output_mode` means, by number."""


@exporter("ATTENTION")
def export_attention(write: NodeWriter) -> Sequence[str]:
    """ATTENTION. Source: ONNX Attention-25.

    What `offset` and windows forbid is a mask: ONNX says the first by past keys alone, and the second since opset 25.
    Beside lengths, windows are attributes, as it is the run that decides which keys they forbid.

    Refused: queries without keys that give NaN, where something masks.
    """
    of = write.operation
    query, key, value, mask, lengths = write.inputs
    _check_empty(write)
    windows = {"left_window_size": of.left_window, "right_window_size": of.right_window}
    stated = {name: size for name, size in windows.items() if size >= 0}
    is_causal, mask = of.is_causal, _spread(write, mask)
    if not lengths and (stated or (is_causal and of.offset)):
        is_causal, stated, mask = False, {}, _with_band(write, mask)
    if of.scale < 0:  # of which ONNX Runtime would take the root
        query = write.node("Neg", query)
    scores = of.scores != "none"
    made = write.nodes(
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
    return (made[0], made[3]) if scores else made


def _sizes(write: NodeWriter) -> tuple[int, int]:
    """How many queries and keys there are."""
    keys: int = write.operation.key.type.dimensions[2]
    return write.type.dimensions[2], keys


def _spread(write: NodeWriter, mask: str) -> str:
    """The mask, spread over queries and keys: ONNX takes one that is short for one that forbids the other keys."""
    if not mask:
        return mask
    wanted, dimensions = _sizes(write), write.operation.mask.type.dimensions
    if dimensions[-2:] == wanted:
        return mask
    return write.node("Expand", mask, write.integers(*dimensions[:-2], *wanted))


def _with_band(write: NodeWriter, mask: str) -> str:
    """The mask, and what causality and windows forbid to each query by its distance from the key.

    The band is written as ops on places: as a constant it would take as much as all scores.
    """
    of = write.operation
    queries, keys = known_sizes(_sizes(write))
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
    """So many whole numbers from the first one on."""
    return write.node("Range", *(write.number(limit, DataType.INT64) for limit in (first, first + count, 1)))


def _check_empty(write: NodeWriter) -> None:
    of = write.operation
    masks = of.mask is not None or of.lengths is not None or of.is_causal or max(of.left_window, of.right_window) >= 0
    if of.without_keys == "nan" and masks:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            "attribute 'without_keys' of ATTENTION is 'nan', and ONNX's Attention gives zeros to queries without keys",
        )


@exporter("ROTARY_EMBEDDING")
def export_rotary_embedding(write: NodeWriter) -> str:
    """ROTARY_EMBEDDING. Source: ONNX RotaryEmbedding-23."""
    of = write.operation
    part = 2 * of.cosine.type.dimensions[2]
    whole = part == write.type.dimensions[3]
    tables = [_rows(write, position) for position in (1, 2)]
    return write.node(
        "RotaryEmbedding",
        write.inputs[0],
        *tables,
        interleaved=of.interleaved,
        rotary_embedding_dim=None if whole else part,
    )


def _rows(write: NodeWriter, position: int) -> str:
    """Cosine or sine with a row for every position of every item of the batch: ONNX broadcasts none."""
    type_ = write.types[position]
    assert type_ is not None, "both are required"
    batch, _, steps, _ = write.type.dimensions
    wanted = (batch, steps, type_.dimensions[2])
    if type_.dimensions == wanted:
        return write.inputs[position]
    return write.node("Expand", write.inputs[position], write.integers(*wanted))


@exporter("LINEAR_ATTENTION")
def export_linear_attention(write: NodeWriter) -> Sequence[str]:
    """LINEAR_ATTENTION. Source: ONNX LinearAttention-27."""
    of = write.operation
    return write.nodes(
        "LinearAttention",
        write.inputs,
        2,
        q_num_heads=of.query_heads,
        kv_num_heads=of.key_value_heads,
        scale=of.scale,
        update_rule=of.update_rule,
    )


@exporter("CAUSAL_CONV")
def export_causal_conv(write: NodeWriter) -> Sequence[str]:
    """CAUSAL_CONV. Source: ONNX CausalConvWithState-27."""
    return write.nodes("CausalConvWithState", write.inputs, 2, activation=write.operation.activation)
