"""Attention over one input, and over queries, keys and values of their own."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.axes import length_of, parts_along, steps_along
from nnadapter.onnx.microsoft.heads import ATTENTION_SINCE, Scores, attention, separated
from nnadapter.onnx.microsoft.masks import score_mask
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_COMMON = {"num_heads": int, "unidirectional": 0, "mask_filter_value": float, "scale": float}


def _scale(body: BodyBuilder) -> float | None:
    scale = body.node.number("scale", 0.0)
    return scale or None


def _refuse_inputs(body: BodyBuilder, names: dict[int, str]) -> None:
    for position, name in names.items():
        if body.input(position):
            raise body.unsupported(name, "is an input that has no meaning on the CPU")


@function_op(
    "Attention",
    "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    "output present?",
    {
        **_COMMON,
        "do_rotary": int,
        "past_present_share_buffer": int,
        "qkv_hidden_sizes": list[int],
        "rotary_embedding_dim": int,
    },
    required=("num_heads",),
)
def attention_body(body: BodyBuilder) -> tuple[str, ...]:
    """Queries, keys and values by one product, then attention. Source: com.microsoft Attention-1.

    Refused: rotary embeddings, a buffer that past and present share, masks for beams and of rank 4.
    """
    _refuse_inputs(body, {6: "past_sequence_length"})
    product = body.add("MatMul", body.input(0), body.input(1))
    product = body.add("Add", product, body.input(2)) if body.input(2) else product
    return attended(body, product, mask=3, past=4, bias=5)


def attended(body: BodyBuilder, product: str, *, mask: int, past: int, bias: int) -> tuple[str, str]:
    """Add attention over queries, keys and values that lie side by side, `[B, S, 3 * N * H]`; and what is present then.

    Args:
        body: of a node whose first input is `[B, S, ...]` and whose second has the width of the product.
        product: the three.
        mask: position of the mask among the inputs; it may be absent, as those below.
        past: of keys and values before the new ones, `[2, B, N, P, H]`.
        bias: of what is added to scores.

    Raises:
        Refusal: rotary embeddings, a buffer that past and present share, a mask of another form.
    """
    for name in ("do_rotary", "past_present_share_buffer"):
        if body.node.integer(name, 0):
            raise body.unsupported(name, "is 1; expected 0")
    heads, widths = body.node.integer("num_heads"), _widths(body)
    parts = [separated(body, part, heads) for part in parts_along(body, product, -1, widths)]
    before: tuple[str, str] | None = None
    if body.input(past) and body.inputs.size(past, 3) != 0:  # a cache at its start has no elements
        old_key, old_value = (body.add("Gather", body.input(past), body.constant(index), axis=0) for index in (0, 1))
        before = old_key, old_value
    steps, old = body.inputs.size(0, 1), body.inputs.size(past, 3) if before else 0
    total = None if steps is None or old is None else steps + old
    keys = body.input(0), 1, steps
    scores = Scores(
        scale=_scale(body),
        head_size=widths[0] // heads,
        causal=body.node.integer("unidirectional", 0) == 1,
        mask=score_mask(body, mask, bias, lambda: _places(body, keys, before, total), body.inputs.size(0, 0)),
        sizes=(steps, total, old),
    )
    made, key, value = attention(body, parts[0], parts[1], parts[2], scores, before)
    present = ""
    if body.wants(1):
        present = body.add("Concat", body.unsqueeze(key, 0), body.unsqueeze(value, 0), axis=0)
    return made, present


def _widths(body: BodyBuilder) -> Sequence[int]:
    stated, total, heads = (
        body.node.integers("qkv_hidden_sizes"),
        body.inputs.width(1, 1),
        body.node.integer("num_heads"),
    )
    if total is None and stated is None:
        raise Refusal(Reason.DYNAMIC_SHAPE, f"{body.node.op_type} has weights of unknown width")
    widths = stated or (int(total or 0) // 3,) * 3
    if len(widths) != 3 or heads < 1 or any(width % heads for width in widths) or sum(widths) != (total or sum(widths)):
        raise body.invalid(f"has weights of width {total} for {heads} heads, and 'qkv_hidden_sizes' {list(widths)}")
    return widths


@function_op(
    "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?",
    "output present_key? present_value? qk?",
    _COMMON,
    required=("num_heads",),
)
def multi_head_attention_body(body: BodyBuilder) -> tuple[str, ...]:
    """Attention over inputs that are packed in one of four ways. Source: com.microsoft MultiHeadAttention-1.

    Refused: a buffer that past and present share, beams, scores as an output.
    """
    _refuse_inputs(body, {8: "past_sequence_length", 9: "cache_indirection"})
    if body.wants(3):
        raise body.unsupported("qk", "is an output that has no meaning here")
    query, key, value, keys = _packed(body)
    past = (body.input(6), body.input(7)) if body.input(6) else None
    before = body.inputs.size(6, 2) if past else 0
    total = None if keys[2] is None or before is None else keys[2] + before
    steps, width = body.inputs.size(0, 1), body.inputs.width(0)
    causal = body.node.integer("unidirectional", 0) == 1
    last_sees_all = causal and bool(body.input(1)) and not _enough_queries(body, keys[1])
    if last_sees_all and body.opset >= ATTENTION_SINCE:
        raise body.unsupported("unidirectional", "is 1 with more keys than queries, whose last sees all keys")
    heads = body.node.integer("num_heads")
    head_size = width if body.inputs.rank(0) == 5 else None if width is None else width // heads
    scores = Scores(
        scale=_scale(body),
        head_size=head_size,
        causal=causal,
        mask=score_mask(body, 4, 5, lambda: _places(body, keys, past, total), body.inputs.size(0, 0)),
        last_sees_all=last_sees_all,
        sizes=(steps, total, before),
    )
    return attention(body, query, key, value, scores, past)


def _places(
    body: BodyBuilder, keys: tuple[str, int, int | None], past: tuple[str, str] | None, total: int | None
) -> str:
    """The numbers from 0 to that of all keys, past ones and new ones."""
    if total is not None or past is None:
        return steps_along(body, keys[0], keys[1], total)
    count = body.add("Add", length_of(body, keys[0], keys[1]), length_of(body, past[0], 2))
    return body.add("Range", body.constant(0), body.add("Squeeze", count), body.constant(1))


def _enough_queries(body: BodyBuilder, axis: int) -> bool:
    """Whether there are as many queries as new keys, which this axis of the keys counts, or more; False if unknown."""
    queries, keys = (body.inputs.value(0).shape or ())[1], (body.inputs.value(1).shape or ())[axis]
    if queries is not None and queries == keys:
        return True
    steps, new = body.inputs.size(0, 1), body.inputs.size(1, axis)
    return steps is not None and new is not None and steps >= new


def _packed(body: BodyBuilder) -> tuple[str, str, str, tuple[str, int, int | None]]:
    """Queries, keys and values, each `[B, N, S or T, H]`; and what counts the new keys: a value, an axis, the size."""
    heads = body.node.integer("num_heads")
    if heads < 1:
        raise body.invalid(f"has attribute 'num_heads' {heads}; expected 1 or more")
    names = [body.input(position) for position in range(3)]
    if body.inputs.rank(0) == 5:
        parts = _unpacked(body, names[0], 3)
        counted = names[0], 1, body.inputs.size(0, 1)
    elif body.inputs.rank(1) == 5:
        parts = [body.reshape(names[0], 0, 0, heads, -1), *_unpacked(body, names[1], 2)]
        counted = names[1], 1, body.inputs.size(1, 1)
    elif body.inputs.rank(1) == 4:
        if body.input(3):
            query_bias = _biases(body)[0]
            names[0] = body.add("Add", names[0], query_bias)
        counted = names[1], 2, body.inputs.size(1, 2)
        return separated(body, names[0], heads), names[1], names[2], counted
    else:
        parts = [body.reshape(name, 0, 0, heads, -1) for name in names]
        counted = names[1], 1, body.inputs.size(1, 1)
    if body.input(3):
        shaped = [body.reshape(bias, heads, -1) for bias in _biases(body)]
        parts = [body.add("Add", part, bias) for part, bias in zip(parts, shaped, strict=True)]
    query, key, value = (body.add("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    return query, key, value, counted


def _unpacked(body: BodyBuilder, x: str, count: int) -> list[str]:
    parts = parts_along(body, x, 3, (1,) * count)
    return [body.add("Squeeze", part, body.constant((3,))) for part in parts]


def _biases(body: BodyBuilder) -> tuple[str, ...]:
    """The bias of queries, keys and values: those of queries and keys are as wide as the queries are."""
    total, width = body.inputs.width(3, 0), body.inputs.width(0)
    if total is None:
        raise body.invalid("has a bias of unknown width")
    own = total // 3 if body.inputs.rank(0) == 5 or width is None else width
    return parts_along(body, body.input(3), 0, (own, own, total - 2 * own))
