"""Bodies of attention and rotary embeddings.

Sizes: batch B, heads N, queries S, keys T including past keys P, head size H.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from nnadapter.onnx.body import BodyBuilder, function_op, length_of, parts_along, range_to, sliced, steps_along
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass, replace
from partition.graph import Reason

ATTENTION_SINCE = 23
"""First opset with Attention."""
_EXCHANGED = [0, 2, 1, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Parameters of attention scores."""

    scale: float | None
    head_size: int | None
    causal: bool = False
    softcap: float = 0.0
    mask: str = ""
    """Additive mask, broadcastable to `[B, N, S, T]`; empty if none."""
    sink: str = ""
    """Extra softmax logit, `[1, N, 1, 1]` or scalar; empty if none."""
    last_sees_all: bool = False
    """True to exempt the last query from causality, for opsets without Attention."""
    sizes: tuple[int | None, int | None, int | None] = (None, None, None)
    """S, T and P, for opsets without Attention."""


def separated(body: BodyBuilder, x: str, heads: int, head_size: int = -1) -> str:
    """Split `[B, S, N * H]` into `[B, N, S, H]`."""
    return body.Transpose(body.reshape(x, 0, 0, heads, head_size), perm=_EXCHANGED)


def joined(body: BodyBuilder, x: str, width: int = -1) -> str:
    """Merge `[B, N, S, H]` into `[B, S, N * H]`."""
    return body.reshape(body.Transpose(x, perm=_EXCHANGED), 0, 0, width)


def attention(
    body: BodyBuilder,
    query: str,
    key: str,
    value: str,
    scores: Scores,
    past: tuple[str, str] | None = None,
    groups: tuple[int, int] = (1, 1),
) -> tuple[str, str, str]:
    """Add attention. Return output `[B, S, N * H]`, all keys and all values `[B, N, T, H]`.

    `query`, `key` and `value` are `[B, N, S, H]`; `groups` are the numbers of query and key heads.
    """
    if body.opset >= ATTENTION_SINCE and not scores.sink:
        inputs = (query, key, value, scores.mask, *(past or ()))
        results = body.add_several(
            "Attention",
            inputs,
            1 if past is None else 3,
            is_causal=int(scores.causal),
            scale=scores.scale,
            softcap=scores.softcap,
        )
        return joined(body, results[0]), *(results[1:] or (key, value))  # type: ignore[return-value]
    if past is not None:
        key, value = (
            body.Concat(past_part, new_part, axis=2) for past_part, new_part in zip(past, (key, value), strict=True)
        )
    if scores.causal:
        causal_mask = _causal_mask(body, query, key, scores, "" if past is None else past[0])
        scores = replace(scores, mask=body.plus(scores.mask, causal_mask))
    return _composed(body, query, key, value, scores, groups), key, value


def _composed(body: BodyBuilder, query: str, key: str, value: str, scores: Scores, groups: tuple[int, int]) -> str:
    dtype = body.dtype()
    wide_key, wide_value = (_repeated(body, tensor, *groups, scores.head_size or -1) for tensor in (key, value))
    turned = body.Transpose(wide_key, perm=[0, 1, 3, 2])
    logits = body.Mul(body.MatMul(query, turned), _score_scale(body, query, scores, dtype))
    if scores.softcap:
        cap = body.constant(scores.softcap, dtype)
        logits = body.Mul(body.Tanh(body.Div(logits, cap)), cap)
    logits = body.plus(logits, scores.mask)
    weights = _with_sink(body, logits, query, scores.sink) if scores.sink else body.Softmax(logits, axis=-1)
    return joined(body, body.MatMul(weights, wide_value))


def _score_scale(body: BodyBuilder, query: str, scores: Scores, dtype: str) -> str:
    if scores.scale is not None or scores.head_size is not None:
        return body.constant(1 / sqrt(scores.head_size or 1) if scores.scale is None else scores.scale, dtype)
    return body.Reciprocal(body.Sqrt(body.cast(length_of(body, query, 3), dtype)))


def _repeated(body: BodyBuilder, x: str, heads: int, groups: int, head_size: int) -> str:
    if heads == groups:
        return x
    tiled = body.Tile(body.unsqueeze(x, 2), body.constant((1, 1, heads // groups, 1, 1)))
    return body.reshape(tiled, 0, heads, -1, head_size)


def _causal_mask(body: BodyBuilder, query: str, key: str, scores: Scores, past: str) -> str:
    count, total, past_length = scores.sizes
    queries, keys = (
        body.unsqueeze(steps_along(body, query, 2, count), 1),
        body.unsqueeze(steps_along(body, key, 2, total), 0),
    )
    places = queries
    if past:
        first = length_of(body, past, 2) if past_length is None else body.constant((past_length,))
        places = body.Add(queries, first)
    allowed = body.LessOrEqual(keys, places)
    if scores.last_sees_all:
        last = body.Sub(length_of(body, query, 2), body.constant((1,)))
        allowed = body.Or(allowed, body.Equal(queries, last))
    return filtered(body, allowed, lowest(body.dtype()), body.dtype())


def filtered(body: BodyBuilder, allowed: str, value: float, dtype: str) -> str:
    """Return an additive mask: 0 if allowed, otherwise `value`."""
    return body.Where(allowed, body.constant(0.0, dtype), body.constant(value, dtype))


def lowest(dtype: str) -> float:
    """Return the mask value of hidden keys: the lowest float16 or float32."""
    return float(np.finfo(np.float16).min) if dtype == "float16" else float(np.finfo(np.float32).min)


def _with_sink(body: BodyBuilder, logits: str, query: str, sink: str) -> str:
    zeros = body.Mul(sliced(body, query, 3, 0, 1), body.constant(0.0, body.dtype()))  # `[B, N, S, 1]`
    scores = body.Concat(logits, body.Add(zeros, sink), axis=-1)
    return sliced(body, body.Softmax(scores, axis=-1), 3, 0, -1)


_NUMBERS = "float32"
"""Data type of compared numbers, since few devices compare integers wider than 16 bits."""


def score_mask(body: BodyBuilder, position: int, bias: int, places: Callable[[], str], rows: int | None) -> str:
    """Return the additive mask `[B or 1, N or 1, S or 1, T]`, an empty name if there is none, or raise Refusal.

    1. A mask of rank 1 at `position` has the end of each sequence's keys, and possibly the starts. Offsets of packed
       sequences are ignored. In a mask of rank 2 or 3, 0 hides a key. A matrix of one column is ignored.
    2. Hidden keys get `mask_filter_value`, so a query with all keys hidden sees all of them.
    3. The input at position `bias` is added.

    `places` adds the positions of all keys. `rows` is the static batch size, if any.
    """
    mask = _key_mask(body, position, places, rows) if body.input(position) else ""
    return body.plus(mask, body.input(bias))


def _key_mask(body: BodyBuilder, position: int, places: Callable[[], str], rows: int | None) -> str:
    mask, rank, dtype = body.input(position), body.rank(position), body.dtype()
    if rank == 2 and body.width(position, 1) == 1:
        return ""
    if rank == 1:
        allowed = _between(body, position, places(), rows)
    elif rank in (2, 3):
        shown = body.Less(body.constant(0.0, _NUMBERS), body.cast(mask, _NUMBERS))
        allowed = body.unsqueeze(shown, 1, 2) if rank == 2 else body.unsqueeze(shown, 1)
    else:
        raise body.invalid(f"has a mask (input {position}) of rank {rank}; expected 1 to 3")
    filter_value = max(body.node.number("mask_filter_value", -10000.0), lowest(dtype))
    return filtered(body, allowed, filter_value, dtype)


def _between(body: BodyBuilder, position: int, places: str, rows: int | None) -> str:
    numbers, count = body.cast(body.input(position), _NUMBERS), body.size(position, 0)
    places = body.cast(places, _NUMBERS)
    texts, stated = ((body.value(input_index).shape or (None,))[0] for input_index in (0, position))
    if stated is not None and stated == texts:
        return body.Less(places, body.reshape(numbers, -1, 1, 1, 1))
    if rows is None or count is None:
        ends, starts = _in_the_run(body, numbers)
    elif count == 2 * rows:
        ends, starts = parts_along(body, numbers, 0, (rows, rows))
    elif count == 3 * rows + 2:
        return body.Less(places, body.reshape(sliced(body, numbers, 0, 0, rows), -1, 1, 1, 1))
    else:
        raise body.invalid(
            f"has a mask (input {position}) of {count} numbers for {rows} sequences; expected {rows}, {2 * rows} or "
            f"{3 * rows + 2}"
        )
    ends, starts = (body.reshape(bound, -1, 1, 1, 1) for bound in (ends, starts))
    return body.And(body.Less(places, ends), body.LessOrEqual(starts, places))


def _in_the_run(body: BodyBuilder, numbers: str) -> tuple[str, str]:
    texts, count = length_of(body, body.input(0), 0), length_of(body, numbers, 0)
    has_starts = body.cast(body.Equal(count, body.Add(texts, texts)), _NUMBERS)
    last = body.Slice(numbers, body.Sub(count, texts), count)
    return sliced(body, numbers, 0, 0, texts), body.Mul(last, has_starts)


_ROTARY_EMBEDDING_SINCE = 23
_ROTARY = {"interleaved": int, "is_packed_batching": int, "num_heads": int, "rotary_embedding_dim": int, "scale": float}


def turned(body: BodyBuilder, x: str, tables: tuple[str, str], pairs: int, head_size: int, *, interleaved: bool) -> str:
    """Rotate the first 2 * `pairs` features of `[B, N, S, H]` by cosines and sines `[B or 1, S, pairs]`."""
    part = 2 * pairs
    if body.opset >= _ROTARY_EMBEDDING_SINCE:
        return body.RotaryEmbedding(
            x,
            *tables,
            interleaved=int(interleaved),
            rotary_embedding_dim=0 if part == head_size else part,
        )
    return turned_plainly(body, x, tables, pairs, head_size, interleaved=interleaved)


def turned_plainly(
    body: BodyBuilder, x: str, tables: tuple[str, str], pairs: int, head_size: int, *, interleaved: bool
) -> str:
    """Rotate like `turned`, without ONNX's RotaryEmbedding."""
    part, unrotated = 2 * pairs, ""
    if part != head_size:
        x, unrotated = parts_along(body, x, -1, (part, head_size - part))
    cosine, sine = (body.unsqueeze(table, 1) for table in tables)
    result = (_alternating if interleaved else _in_halves)(body, x, cosine, sine, pairs)
    return body.Concat(result, unrotated, axis=-1) if unrotated else result


def _alternating(body: BodyBuilder, x: str, cosine: str, sine: str, pairs: int) -> str:
    paired = body.reshape(x, 0, 0, 0, pairs, 2)
    first, second = (body.Gather(paired, body.constant(index), axis=4) for index in (0, 1))
    real = body.Sub(body.Mul(first, cosine), body.Mul(second, sine))
    imaginary = body.Add(body.Mul(first, sine), body.Mul(second, cosine))
    both = body.Concat(body.unsqueeze(real, 4), body.unsqueeze(imaginary, 4), axis=4)
    return body.reshape(both, 0, 0, 0, 2 * pairs)


def _in_halves(body: BodyBuilder, x: str, cosine: str, sine: str, pairs: int) -> str:
    """Rotate feature `i` with feature `i + pairs`, by tables that are repeated for both halves.

    Engines recognize this form. OpenVINO also recognizes one without repetition, but computes it wrongly.
    """
    first, second = sliced(body, x, 3, 0, pairs), sliced(body, x, 3, pairs, 2 * pairs)
    other = body.Concat(body.Neg(second), first, axis=-1)
    cosines, sines = (body.Concat(table, table, axis=-1) for table in (cosine, sine))
    return body.Add(body.Mul(x, cosines), body.Mul(other, sines))


@function_op(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "output",
    _ROTARY,
)
def rotary_embedding_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft RotaryEmbedding-1. Refused: packed batches, scale."""
    pairs, width = _rotated_widths(body)
    packed = body.rank(0) == 3
    positions = body.input(1)
    if body.rank(1) == 1:
        if body.width(1, 0) not in (1, None):
            raise body.invalid(f"has {body.width(1, 0)} numbers in 1-D position_ids; expected one, the first token's")
        axis = 1 if packed else 2
        steps = steps_along(body, body.input(0), axis, body.size(0, axis))
        positions = body.unsqueeze(body.Add(steps, positions), 0)
    tables = body.Gather(body.input(2), positions), body.Gather(body.input(3), positions)
    return (_turned_heads(body, tables, pairs, width),)


@function_op(
    "MRotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "output",
    {**_ROTARY, "mrope_layout": int, "mrope_section": list[int]},
    required=("mrope_section",),
)
def multimodal_rotary_embedding_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft MRotaryEmbedding-1: feature pairs use time, height or width positions.

    Refused: packed batches, scale.
    """
    pairs, width = _rotated_widths(body)
    streams = np.array(_streams(body, pairs))
    tables = []
    for position in (2, 3):
        three = body.Gather(body.input(position), body.input(1))  # `[3, B, S, pairs]`
        table, *other_tables = (body.Gather(three, body.constant(stream), axis=0) for stream in range(3))
        for stream, other in enumerate(other_tables, 1):
            table = body.Where(body.constant(streams == stream, "bool"), other, table)
        tables.append(table)
    return (_turned_heads(body, (tables[0], tables[1]), pairs, width),)


def _streams(body: BodyBuilder, pairs: int) -> list[int]:
    sections, layout = body.node.integers("mrope_section") or (), body.node.integer("mrope_layout", 0)
    if len(sections) != 3 or sum(sections) != pairs or min(sections) < 0 or layout not in (0, 1):
        problem = f"{list(sections)}, and 'mrope_layout' {layout}"
        raise body.invalid(
            f"has attribute 'mrope_section' {problem}; expected three sizes with the sum {pairs}, and layout 0 or 1"
        )
    if not layout:
        return [stream for stream, size in enumerate(sections) for _ in range(size)]
    return [pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)]


def _rotated_widths(body: BodyBuilder) -> tuple[int, int]:
    if body.node.integer("is_packed_batching", 0):
        raise body.unsupported("is_packed_batching", "is 1; expected 0")
    if body.node.number("scale", 1.0) != 1:
        raise body.unsupported("scale", f"is {body.node.number('scale')}; expected 1")
    pairs, width = body.width(2), body.width(0)
    if pairs is None or width is None:
        raise body.invalid("needs an input and a cos_cache of static width")
    return pairs, width


def _turned_heads(body: BodyBuilder, tables: tuple[str, str], pairs: int, width: int) -> str:
    packed, (heads, head_size) = body.rank(0) == 3, _heads(body, width, pairs)
    x = separated(body, body.input(0), heads, head_size=head_size) if packed else body.input(0)
    rotated = turned(body, x, tables, pairs, head_size, interleaved=body.node.integer("interleaved", 0) != 0)
    return joined(body, rotated, width) if packed else rotated


def _heads(body: BodyBuilder, width: int, pairs: int) -> tuple[int, int]:
    packed, part = body.rank(0) == 3, body.node.integer("rotary_embedding_dim", 0)
    heads = body.node.integer("num_heads", 0)
    if part and heads < 1:
        raise body.unsupported("num_heads", f"is {heads} with 'rotary_embedding_dim' {part}; expected 1 or more")
    heads = heads or (width // max(2 * pairs, 1) if packed else 1)
    if packed and (heads < 1 or width % heads):
        raise body.invalid(f"has {width} features; expected a multiple of {heads} heads")
    size = width // heads if packed else width
    if pairs < 1 or 2 * pairs != (part or size) or part > size:
        stated = f", and 'rotary_embedding_dim' {part}" if part else ""
        raise body.invalid(f"has {pairs} columns in cos_cache for heads of {size} features{stated}; expected half that")
    return heads, size


_COMMON = {"num_heads": int, "unidirectional": 0, "mask_filter_value": float, "scale": float}


def _scale(body: BodyBuilder) -> float | None:
    return body.node.number("scale", 0.0) or None


def _refuse_inputs(body: BodyBuilder, names: dict[int, str]) -> None:
    for position, name in names.items():
        if body.input(position):
            raise body.unsupported(name, "is present, but ONNX Runtime on the CPU ignores it; omit it", "input")


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
    """Expand com.microsoft Attention-1.

    Refused: rotary embeddings, buffers shared by past and present, masks for beams or of rank 4.
    """
    _refuse_inputs(body, {6: "past_sequence_length"})
    product = body.plus(body.MatMul(body.input(0), body.input(1)), body.input(2))
    return attended(body, product, mask=3, past=4, bias=5)


def attended(body: BodyBuilder, product: str, *, mask: int, past: int, bias: int) -> tuple[str, str]:
    """Add attention over QKV in `product` `[B, S, 3 * N * H]`. Return output and present cache, or raise Refusal.

    `mask`, `past` and `bias` are input positions; the past is `[2, B, N, P, H]`. Input 0 determines S, input 1 the
    width.
    """
    for name in ("do_rotary", "past_present_share_buffer"):
        if body.node.integer(name, 0):
            raise body.unsupported(name, "is 1; expected 0")
    heads, widths = body.node.integer("num_heads"), _widths(body)
    parts = [separated(body, part, heads) for part in parts_along(body, product, -1, widths)]
    past_pair: tuple[str, str] | None = None
    if body.input(past) and body.size(past, 3) != 0:  # an empty cache has no elements
        old_key, old_value = (body.Gather(body.input(past), body.constant(index), axis=0) for index in (0, 1))
        past_pair = old_key, old_value
    steps, past_length = body.size(0, 1), body.size(past, 3) if past_pair else 0
    total = None if steps is None or past_length is None else steps + past_length
    keys = body.input(0), 1, steps
    scores = Scores(
        scale=_scale(body),
        head_size=widths[0] // heads,
        causal=body.node.integer("unidirectional") == 1,
        mask=score_mask(body, mask, bias, lambda: _places(body, keys, past_pair, total), body.size(0, 0)),
        sizes=(steps, total, past_length),
    )
    output, key, value = attention(body, parts[0], parts[1], parts[2], scores, past_pair)
    present = ""
    if body.wants(1):
        present = body.Concat(body.unsqueeze(key, 0), body.unsqueeze(value, 0), axis=0)
    return output, present


def _widths(body: BodyBuilder) -> Sequence[int]:
    stated, total, heads = (
        body.node.integers("qkv_hidden_sizes"),
        body.width(1, 1),
        body.node.integer("num_heads"),
    )
    if total is None and stated is None:
        raise Refusal(Reason.DYNAMIC_SHAPE, f"{body.node.op_type} needs weights of static width")
    widths = stated or (int(total or 0) // 3,) * 3
    if len(widths) != 3 or heads < 1 or any(width % heads for width in widths) or sum(widths) != (total or sum(widths)):
        raise body.invalid(
            f"has weights of width {total} for {heads} heads, and 'qkv_hidden_sizes' {list(widths)}; expected three "
            "multiples of the number of heads, with that width as their sum"
        )
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
    """Expand com.microsoft MultiHeadAttention-1.

    Inputs are separate, packed QKV, packed KV, or keys and values of rank 4. Refused: buffers shared by past and
    present, beam search, score output.
    """
    _refuse_inputs(body, {8: "past_sequence_length", 9: "cache_indirection"})
    if body.wants(3):
        raise body.unsupported("qk", "is read, but cannot be computed from ONNX ops", "output")
    query, key, value, keys = _packed(body)
    past = (body.input(6), body.input(7)) if body.input(6) else None
    past_length = body.size(6, 2) if past else 0
    total = None if keys[2] is None or past_length is None else keys[2] + past_length
    steps, width = body.size(0, 1), body.width(0)
    causal = body.node.integer("unidirectional") == 1
    last_sees_all = causal and bool(body.input(1)) and not _enough_queries(body, keys[1])
    if last_sees_all and body.opset >= ATTENTION_SINCE:
        raise body.unsupported("unidirectional", "is 1 with more keys than queries; expected 0, or as many queries")
    heads = body.node.integer("num_heads")
    head_size = width if body.rank(0) == 5 else None if width is None else width // heads
    scores = Scores(
        scale=_scale(body),
        head_size=head_size,
        causal=causal,
        mask=score_mask(body, 4, 5, lambda: _places(body, keys, past, total), body.size(0, 0)),
        last_sees_all=last_sees_all,
        sizes=(steps, total, past_length),
    )
    return attention(body, query, key, value, scores, past)


def _places(
    body: BodyBuilder, keys: tuple[str, int, int | None], past: tuple[str, str] | None, total: int | None
) -> str:
    if total is not None or past is None:
        return steps_along(body, keys[0], keys[1], total)
    count = body.Add(length_of(body, keys[0], keys[1]), length_of(body, past[0], 2))
    return range_to(body, body.Squeeze(count))


def _enough_queries(body: BodyBuilder, axis: int) -> bool:
    queries, keys = (body.value(0).shape or ())[1], (body.value(1).shape or ())[axis]
    if queries is not None and queries == keys:
        return True
    steps, new_keys = body.size(0, 1), body.size(1, axis)
    return steps is not None and new_keys is not None and steps >= new_keys


def _packed(body: BodyBuilder) -> tuple[str, str, str, tuple[str, int, int | None]]:
    """Return queries, keys and values `[B, N, S or T, H]`, then input, axis and size of the new keys' dimension."""
    heads = body.node.integer("num_heads")
    if heads < 1:
        raise body.invalid(f"has attribute 'num_heads' {heads}; expected 1 or more")
    names = [*map(body.input, range(3))]
    if body.rank(0) == 5:
        parts = _unpacked(body, names[0], 3)
        counted = names[0], 1, body.size(0, 1)
    elif body.rank(1) == 5:
        parts = [body.reshape(names[0], 0, 0, heads, -1), *_unpacked(body, names[1], 2)]
        counted = names[1], 1, body.size(1, 1)
    elif body.rank(1) == 4:
        if body.input(3):
            query_bias = _biases(body)[0]
            names[0] = body.Add(names[0], query_bias)
        counted = names[1], 2, body.size(1, 2)
        return separated(body, names[0], heads), names[1], names[2], counted
    else:
        parts = [body.reshape(name, 0, 0, heads, -1) for name in names]
        counted = names[1], 1, body.size(1, 1)
    if body.input(3):
        shaped = [body.reshape(bias, heads, -1) for bias in _biases(body)]
        parts = [body.Add(part, bias) for part, bias in zip(parts, shaped, strict=True)]
    query, key, value = (body.Transpose(part, perm=[0, 2, 1, 3]) for part in parts)
    return query, key, value, counted


def _unpacked(body: BodyBuilder, x: str, count: int) -> list[str]:
    parts = parts_along(body, x, 3, (1,) * count)
    return [body.Squeeze(part, body.constant((3,))) for part in parts]


def _biases(body: BodyBuilder) -> tuple[str, ...]:
    total, width = body.width(3, 0), body.width(0)
    if total is None:
        raise body.invalid("needs a bias of static length")
    query_width = total // 3 if body.rank(0) == 5 or width is None else width
    return parts_along(body, body.input(3), 0, (query_width, query_width, total - 2 * query_width))
