"""Attention: every query looks at the keys and takes a mixture of their values.

Sizes: batch B, query heads H, heads of keys and values G (a divisor of H), queries S, keys T, depth D, depth of values
E.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, per_output, present, row, string
from nnadapter.ir.operations.shape_rules import check_at_least, check_broadcasts_to, check_vector
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INDICES = frozenset({DataType.INT32, DataType.INT64})
_INPUT = Role("input", FLOATING)


def _attention(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    query, key, value = (present(types, position) for position in range(3))
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
        raise InvalidModelError(f"{heads} query heads share {groups} heads of keys, expected a divisor")
    check_at_least("windows", (integer(attributes, "left_window"), integer(attributes, "right_window")), -1)
    scores = (batch, heads, queries, keys)
    mask, lengths = ((*types, None, None)[position] for position in (3, 4))
    if mask is not None:
        check_broadcasts_to("mask", mask.dimensions, scores)
    if lengths is not None:
        check_vector("lengths", lengths, batch)
    results = (OperandType(query.dtype, (batch, heads, queries, value.dimensions[3])),)
    return results if attributes["scores"] == "none" else (*results, OperandType(query.dtype, scores))


def _attention_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # Per score: the product and its scale, the mask, five steps of softmax, and its share in the mixture.
    batch, heads, queries, depth = present(types, 0).dimensions
    keys, value_depth = present(types, 2).dimensions[2:]
    return batch * heads * queries * keys * (2 * depth + 2 * value_depth + 7)


def _rotary(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, cosine, sine = (present(types, position) for position in range(3))
    batch, _, steps, depth = first.dimensions
    if cosine.rank != 3 or cosine.dimensions != sine.dimensions:
        raise InvalidModelError(
            f"cosine {list(cosine.dimensions)} and sine {list(sine.dimensions)} differ or have not three dimensions"
        )
    check_broadcasts_to("cosine", cosine.dimensions[:2], (batch, steps))
    if 2 * cosine.dimensions[2] > depth:
        raise InvalidModelError(f"cosine turns {cosine.dimensions[2]} pairs, expected at most half of depth {depth}")
    return (OperandType(first.dtype, first.dimensions),)


def _linear(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    query, key, value = (present(types, position) for position in range(3))
    past, decay, rate = ((*types, None, None, None)[position] for position in (3, 4, 5))
    heads, groups = integer(attributes, "query_heads"), integer(attributes, "key_value_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise InvalidModelError(f"{heads} query heads share {groups} heads of keys, expected a divisor of one or more")
    batch, steps, width = query.dimensions
    if width % heads:
        raise InvalidModelError(f"query has {width} features for {heads} heads, expected a multiple")
    depth = width // heads
    _check_packed("key", key, (batch, steps), (groups * depth,))
    if value.rank != 3 or value.dimensions[:2] != (batch, steps) or value.dimensions[2] % groups:
        raise InvalidModelError(f"value has dimensions {list(value.dimensions)}, expected [B, T, heads * depth]")
    value_depth = value.dimensions[2] // groups
    _check_rule(string(attributes, "update_rule"), decay, rate)
    if decay is not None:
        _check_packed("decay", decay, (batch, steps), (groups, groups * depth))
    if rate is not None:
        _check_packed("rate", rate, (batch, steps), (groups, 1))
    state = (batch, groups, depth, value_depth)
    if past is not None and past.dimensions != state:
        raise InvalidModelError(f"past_state has dimensions {list(past.dimensions)}, expected {list(state)}")
    result = OperandType(query.dtype, (batch, steps, heads * value_depth))
    return result, OperandType((past or query).dtype, state)


def _check_packed(name: str, type_: OperandType, leading: tuple[int, int], widths: Sequence[int]) -> None:
    dimensions = type_.dimensions
    if len(dimensions) != 3 or dimensions[:2] != leading or all(dimensions[2] != width for width in widths):
        raise InvalidModelError(
            f"{name} has dimensions {list(dimensions)}, expected {list(leading)} and {' or '.join(map(str, widths))}"
        )


def _check_rule(rule: str, decay: OperandType | None, rate: OperandType | None) -> None:
    for name, type_, wanted in (("decay", decay, rule.startswith("gated")), ("rate", rate, rule.endswith("delta"))):
        if (type_ is not None) is not wanted:
            raise InvalidModelError(
                f"{name} is {'there' if type_ else 'absent'}, expected otherwise for update_rule {rule!r}"
            )


def _linear_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # Per element of a state and step: decay, correction and update; per query head: a multiply-add.
    batch, groups, depth, value_depth = outputs[1].dimensions
    steps, heads = present(types, 0).dimensions[1], integer(attributes, "query_heads")
    return batch * steps * depth * value_depth * (5 * groups + 2 * heads)


def _causal(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, weight = present(types, 0), present(types, 1)
    bias, past = ((*types, None, None)[position] for position in (2, 3))
    batch, channels, _ = first.dimensions
    if weight.rank != 3 or weight.dimensions[:2] != (channels, 1) or weight.dimensions[2] < 1:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected [{channels}, 1, taps]")
    if bias is not None:
        check_vector("bias", bias, channels)
    state = (batch, channels, weight.dimensions[2] - 1)
    if past is not None and past.dimensions != state:
        raise InvalidModelError(f"past_state has dimensions {list(past.dimensions)}, expected {list(state)}")
    return OperandType(first.dtype, first.dimensions), OperandType(first.dtype, state)


def _causal_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    extra = 4 if attributes["activation"] == "swish" else 0
    return outputs[0].size * (2 * present(types, 1).dimensions[2] + 1 + extra)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "ATTENTION",
        (
            Role("query", FLOATING),
            Role("key", FLOATING, same_dtype_as="query"),
            Role("value", FLOATING),
            Role("mask", FLOATING | {DataType.BOOL}, optional=True),
            Role("lengths", _INDICES, optional=True),
        ),
        _attention,
        _attention_flops,
        "ONNX Attention-25 on inputs of rank 4, keys and values complete",
        attributes=(
            Attribute("scale", AttributeKind.FLOAT),
            Attribute("softcap", AttributeKind.FLOAT, 0.0),
            Attribute("is_causal", AttributeKind.BOOL, False),
            Attribute("offset", AttributeKind.INT, 0),
            Attribute("left_window", AttributeKind.INT, -1),
            Attribute("right_window", AttributeKind.INT, -1),
            Attribute(
                "scores", AttributeKind.STRING, "none", choices=("none", "product", "capped", "masked", "softmax")
            ),
            Attribute("without_keys", AttributeKind.STRING, "zero", choices=("zero", "nan")),
        ),
        outputs=("output", "scores"),
        ranks=(4, 4),
    ),
    row(
        "ROTARY_EMBEDDING",
        (_INPUT, Role("cosine", FLOATING, same_dtype_as="input"), Role("sine", FLOATING, same_dtype_as="input")),
        _rotary,
        per_output(3),
        "ONNX RotaryEmbedding-23 on an input of rank 4, cosine and sine looked up",
        attributes=(Attribute("interleaved", AttributeKind.BOOL, False),),
        ranks=(4, 4),
    ),
    row(
        "LINEAR_ATTENTION",
        (
            Role("query", FLOATING),
            Role("key", FLOATING, same_dtype_as="query"),
            Role("value", FLOATING, same_dtype_as="query"),
            Role("past_state", FLOATING, optional=True),
            Role("decay", FLOATING, optional=True, same_dtype_as="query"),
            Role("rate", FLOATING, optional=True, same_dtype_as="query"),
        ),
        _linear,
        _linear_flops,
        "ONNX LinearAttention-27",
        attributes=(
            Attribute("query_heads", AttributeKind.INT),
            Attribute("key_value_heads", AttributeKind.INT),
            Attribute("scale", AttributeKind.FLOAT),
            Attribute(
                "update_rule", AttributeKind.STRING, "gated_delta", choices=("linear", "gated", "delta", "gated_delta")
            ),
        ),
        outputs=("output", "present_state"),
        ranks=(3, 3),
    ),
    row(
        "CAUSAL_CONV",
        (
            _INPUT,
            Role("weight", FLOATING, same_dtype_as="input"),
            Role("bias", FLOATING, optional=True, same_dtype_as="input"),
            Role("past_state", FLOATING, optional=True, same_dtype_as="input"),
        ),
        _causal,
        _causal_flops,
        "ONNX CausalConvWithState-27",
        attributes=(Attribute("activation", AttributeKind.STRING, "none", choices=("none", "swish")),),
        outputs=("output", "present_state"),
        ranks=(3, 3),
    ),
)
"""The rows of this family.

ATTENTION: query i, at position i + `offset` (or i + its batch's length - S, where `lengths` are given), looks at key j
if `mask` allows it, j is below the length, not behind that position where `is_causal`, and at most `left_window` before
and `right_window` behind it, -1 being no limit. A query that may look at no key gives zeros. `scores` says what the
second output holds: the scaled products, these after `softcap`, these with the mask, or the weights of the values.
"""
