"""Attention and related layers.

Batch B, query heads H, key and value heads G (a divisor of H), queries S, keys T, depth D, depth of values E.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import Row, check_at_least, check_broadcasts_to, check_dimensions, check_vector, family

row = family(cost="matrix")


def _attention(
    query: OperandType,
    key: OperandType,
    value: OperandType,
    mask: OperandType | None = None,
    lengths: OperandType | None = None,
    *,
    left_window: int,
    right_window: int,
    scores: str,
    **attributes: object,
) -> OperandType | tuple[OperandType, ...]:
    for name, type_ in (("key", key), ("value", value)):
        if type_.rank != 4:
            raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected four")
    batch, heads, queries, depth = query.dimensions
    groups, keys = key.dimensions[1:3]
    if key.dimensions != (batch, groups, keys, depth) or value.dimensions[:3] != (batch, groups, keys):
        raise InvalidModelError(
            f"query {list(query.dimensions)}, key {list(key.dimensions)} and value {list(value.dimensions)} do not fit "
            "together, expected one batch, one depth of query and key, and as many values as keys"
        )
    if groups == 0 or heads % groups:
        raise InvalidModelError(f"query has {heads} heads, expected a multiple of the key heads, {groups}")
    check_at_least(-1, windows=(left_window, right_window))
    of_scores = (batch, heads, queries, keys)
    if mask is not None:
        check_broadcasts_to("mask", mask.dimensions, of_scores)
    check_vector("lengths", lengths, batch)
    result = OperandType(query.dtype, (batch, heads, queries, value.dimensions[3]))
    return result if scores == "none" else (result, OperandType(query.dtype, of_scores))


def _attention_flops(
    outputs: Sequence[OperandType],
    query: OperandType,
    key: OperandType,
    value: OperandType,
    *others: OperandType | None,
    **attributes: object,
) -> int:
    # per score: product and scale, mask, five steps of softmax, weighted sum of values
    batch, heads, queries, depth = query.dimensions
    keys, value_depth = value.dimensions[2:]
    return batch * heads * queries * keys * (2 * depth + 2 * value_depth + 7)


def _rotary(first: OperandType, cosine: OperandType, sine: OperandType, interleaved: bool) -> OperandType:
    batch, _, steps, depth = first.dimensions
    if cosine.rank != 3 or cosine.dimensions != sine.dimensions:
        raise InvalidModelError(
            f"cosine is {list(cosine.dimensions)} and sine {list(sine.dimensions)}, expected the same three dimensions"
        )
    check_broadcasts_to("cosine", cosine.dimensions[:2], (batch, steps))
    if 2 * cosine.dimensions[2] > depth:
        raise InvalidModelError(f"cosine has {cosine.dimensions[2]} columns, expected at most half of depth {depth}")
    return OperandType(first.dtype, first.dimensions)


def _linear(
    query: OperandType,
    key: OperandType,
    value: OperandType,
    past: OperandType | None = None,
    decay: OperandType | None = None,
    rate: OperandType | None = None,
    *,
    query_heads: int,
    key_value_heads: int,
    scale: float,
    update_rule: str,
) -> tuple[OperandType, ...]:
    heads, groups = query_heads, key_value_heads
    if heads < 1 or groups < 1 or heads % groups:
        raise InvalidModelError(
            f"query_heads is {heads}, expected a multiple of key_value_heads, which is {groups}, both at least 1"
        )
    batch, steps, width = query.dimensions
    if width % heads:
        raise InvalidModelError(f"query has {width} features, expected a multiple of its {heads} heads")
    depth = width // heads
    _check_packed("key", key, (batch, steps), groups * depth)
    if value.rank != 3 or value.dimensions[:2] != (batch, steps) or value.dimensions[2] % groups:
        raise InvalidModelError(f"value has dimensions {list(value.dimensions)}, expected [B, T, heads * depth]")
    value_depth = value.dimensions[2] // groups
    for name, type_, required in (
        ("decay", decay, update_rule.startswith("gated")),
        ("rate", rate, update_rule.endswith("delta")),
    ):
        if (type_ is not None) is not required:
            raise InvalidModelError(
                f"{name} is {'present' if type_ else 'absent'}, expected the opposite for update_rule {update_rule!r}"
            )
    _check_packed("decay", decay, (batch, steps), groups, groups * depth)
    _check_packed("rate", rate, (batch, steps), groups, 1)
    state = (batch, groups, depth, value_depth)
    check_dimensions("past_state", past, state)
    result = OperandType(query.dtype, (batch, steps, heads * value_depth))
    return result, OperandType((past or query).dtype, state)


def _check_packed(name: str, type_: OperandType | None, leading: tuple[int, int], *widths: int) -> None:
    if type_ is None:
        return
    dimensions = type_.dimensions
    if len(dimensions) != 3 or dimensions[:2] != leading or all(dimensions[2] != width for width in widths):
        raise InvalidModelError(
            f"{name} has dimensions {list(dimensions)}, expected {list(leading)}, then {' or '.join(map(str, widths))}"
        )


def _linear_flops(
    outputs: Sequence[OperandType], query: OperandType, *others: OperandType | None, query_heads: int, **more: object
) -> int:
    # per state element and step: decay, correction and update; per query head: a multiply-add
    batch, groups, depth, value_depth = outputs[1].dimensions
    return batch * query.dimensions[1] * depth * value_depth * (5 * groups + 2 * query_heads)


def _causal(
    first: OperandType,
    weight: OperandType,
    bias: OperandType | None = None,
    past: OperandType | None = None,
    *,
    activation: str,
) -> tuple[OperandType, ...]:
    batch, channels, _ = first.dimensions
    if weight.rank != 3 or weight.dimensions[:2] != (channels, 1) or weight.dimensions[2] < 1:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected [{channels}, 1, taps]")
    check_vector("bias", bias, channels)
    state = (batch, channels, weight.dimensions[2] - 1)
    check_dimensions("past_state", past, state)
    return OperandType(first.dtype, first.dimensions), OperandType(first.dtype, state)


ROWS: tuple[Row, ...] = (
    row(
        "ATTENTION(query[4]: float, key: float as query, value: float, mask?: float|bool, lengths?: index; "
        "scale: float, softcap: float = 0.0, is_causal: bool = False, offset: int = 0, left_window: int = -1, "
        "right_window: int = -1, scores: string(none|product|capped|masked|softmax) = none, "
        "without_keys: string(zero|nan) = zero -> output, scores)",
        _attention,
        _attention_flops,
        "ONNX Attention-25 on inputs of rank 4, keys and values complete",
    ),
    row(
        "ROTARY_EMBEDDING(input[4]: float, cosine: float as input, sine: float as input; interleaved: bool = False)",
        _rotary,
        3,
        "ONNX RotaryEmbedding-23 on an input of rank 4, cosine and sine looked up",
        cost="function",
    ),
    row(
        "LINEAR_ATTENTION(query[3]: float, key: float as query, value: float as query, past_state?: float, "
        "decay?: float as query, rate?: float as query; query_heads: int, key_value_heads: int, scale: float, "
        "update_rule: string(linear|gated|delta|gated_delta) = gated_delta -> output, present_state)",
        _linear,
        _linear_flops,
        "ONNX LinearAttention-27",
    ),
    row(
        "CAUSAL_CONV(input[3]: float, weight: float as input, bias?: float as input, past_state?: float as input; "
        "activation: string(none|swish) = none -> output, present_state)",
        _causal,
        lambda outputs, first, weight, *others, activation: (
            outputs[0].size * (2 * weight.dimensions[2] + 1 + (4 if activation == "swish" else 0))
        ),
        "ONNX CausalConvWithState-27",
    ),
)
