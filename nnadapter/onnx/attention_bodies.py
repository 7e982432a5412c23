"""ONNX's own Attention and RotaryEmbedding, written down for devices that take ONNX and have no kernel of them.

The functions that ONNX defines for them say the same, in casts, maxima and comparisons that few devices take. Names of
sizes: batch B, heads N of queries and G of keys, queries S, keys T of which P are past, features of a head H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.microsoft.axes import length_of, steps_along
from nnadapter.onnx.microsoft.heads import filtered, joined, lowest, separated
from nnadapter.onnx.microsoft.rotary import turned_plainly

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 3, 4, 5, 6
_SCORES = 3
"""The output of them."""
_PADDED_SINCE = 24
"""The first version in which a mask may be shorter than there are keys, and forbids those that it does not reach."""
_COUNTS = "float32"
"""Lengths that the data say: few devices compute with integers of 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """Which heads there are, and of how many features."""

    queries: int
    keys: int
    size: int
    """Of queries and keys."""
    wide: int
    """Of values."""


def attention_body(body: BodyBuilder) -> Sequence[str]:
    """Attention, in which queries that see no key make 0. Source: ONNX Attention-24.

    Refused: scores as an output, windows, heads or features of unknown number, a mask of one column for all keys.
    """
    if body.wants(_SCORES):
        raise body.unsupported("qk_matmul_output_mode", "is of an output that is not written out")
    for name in ("left_window_size", "right_window_size"):
        if body.node.integer(name, -1) >= 0:
            raise body.unsupported(name, "is stated; expected -1")
    heads, dtype, packed = _heads(body), body.inputs.dtype(0), body.inputs.rank(0) == 3
    query, key, value = (body.input(position) for position in range(3))
    if packed:
        query = separated(body, query, heads.queries, head_size=heads.size)
        key = separated(body, key, heads.keys, head_size=heads.size)
        value = separated(body, value, heads.keys, head_size=heads.wide)
    if body.input(_PAST_KEY):
        key = body.add("Concat", body.input(_PAST_KEY), key, axis=2)
        value = body.add("Concat", body.input(_PAST_VALUE), value, axis=2)
    scale = body.node.number("scale", 1 / sqrt(heads.size))
    scaled = body.add("Mul", query, body.constant(scale, dtype))
    bias, sees = _mask(body, query, key)
    output = _weighted_values(body, (scaled, key, value), bias, heads)
    if sees:
        output = body.add("Where", sees, output, body.constant(0.0, dtype))
    return (joined(body, output, heads.queries * heads.wide) if packed else output), key, value


def rotary_embedding_body(body: BodyBuilder) -> Sequence[str]:
    """Tables are looked up by positions, or have a row for each. Source: ONNX RotaryEmbedding-23."""
    packed, heads, width = body.inputs.rank(0) == 3, body.node.integer("num_heads", 0), body.inputs.width(0)
    pairs = body.inputs.width(1)
    if width is None or pairs is None or (packed and (heads < 1 or width % heads)):
        raise body.invalid("has heads or tables of unknown width")
    size = width // heads if packed else width
    if 2 * pairs != (body.node.integer("rotary_embedding_dim", 0) or size):
        raise body.invalid(f"has tables of {pairs} columns for heads of {size} features")
    x = separated(body, body.input(0), heads, head_size=size) if packed else body.input(0)
    cosine, sine = (
        body.add("Gather", body.input(position), body.input(3)) if body.input(3) else body.input(position)
        for position in (1, 2)
    )
    interleaved = body.node.integer("interleaved", 0) != 0
    rotated = turned_plainly(body, x, (cosine, sine), pairs, size, interleaved=interleaved)
    return [joined(body, rotated, width) if packed else rotated]


def _heads(body: BodyBuilder) -> _Heads:
    widths = [body.inputs.width(position) for position in range(3)]
    if body.inputs.rank(0) == 3:
        queries, keys = (body.node.integer(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        parts = (queries, keys, keys)
    else:
        queries, keys = (body.inputs.width(position, 1) or 0 for position in (0, 1))
        parts = (1, 1, 1)
    if queries < 1 or keys < 1 or queries % keys:
        raise body.invalid(f"has {queries} heads of queries that share {keys} of keys; expected a divisor")
    if any(not width or width % part for width, part in zip(widths, parts, strict=True)):
        raise body.invalid(f"has widths {widths}; expected numbers that {queries} and {keys} heads divide")
    size, _, wide = (int(width or 0) // part for width, part in zip(widths, parts, strict=True))
    return _Heads(queries=queries, keys=keys, size=size, wide=wide)


def _weighted_values(body: BodyBuilder, parts: tuple[str, str, str], bias: str, heads: _Heads) -> str:
    """`[B, N, S, H]`: values by how much queries see of their keys; heads that share keys lie beside each other."""
    query, key, value = parts
    share = heads.queries // heads.keys
    if share > 1:
        query = body.reshape(query, 0, heads.keys, share, -1, heads.size)
        key, value = body.unsqueeze(key, 2), body.unsqueeze(value, 2)
    order = [0, 1, 2, 4, 3] if share > 1 else [0, 1, 3, 2]
    scores = body.add("MatMul", query, body.add("Transpose", key, perm=order))
    softcap = body.node.number("softcap", 0.0)
    if softcap:
        cap = body.constant(softcap, body.inputs.dtype(0))
        scores = body.add("Mul", body.add("Tanh", body.add("Div", scores, cap)), cap)
    if bias:
        scores = body.add("Add", scores, _of_shared(body, bias, heads) if share > 1 else bias)
    output = body.add("MatMul", body.add("Softmax", scores, axis=-1), value)
    return body.reshape(output, 0, heads.queries, -1, heads.wide) if share > 1 else output


def _of_shared(body: BodyBuilder, bias: str, heads: _Heads) -> str:
    """A bias of heads in the order in which they share keys."""
    rank = 4 if body.input(_LENGTHS) else body.inputs.rank(_MASK) if body.input(_MASK) else 2
    if rank < 3:
        return bias
    count = body.inputs.width(_MASK, -3) if body.input(_MASK) and body.inputs.rank(_MASK) > 2 else 1
    if count not in (1, heads.queries):
        raise body.invalid(f"has a mask for {count} heads; expected 1 or {heads.queries}")
    if count == 1:
        return body.unsqueeze(bias, rank - 2)
    batched_bias = body.unsqueeze(bias, 0) if rank == 3 else bias
    shape = body.add(
        "Concat",
        length_of(body, batched_bias, 0),
        body.constant((heads.keys, heads.queries // heads.keys)),
        length_of(body, batched_bias, 2),
        length_of(body, batched_bias, 3),
        axis=0,
    )
    return body.add("Reshape", batched_bias, shape)


def _mask(body: BodyBuilder, query: str, key: str) -> tuple[str, str]:
    """What is added to scores, and which queries see a key at all: each broadcasts, and is empty where all is seen."""
    dtype = body.inputs.dtype(0)
    allowed = _both(body, _behind(body, query, key), _within(body, key))
    if not body.input(_MASK):
        bias = filtered(body, allowed, lowest(dtype), dtype) if allowed else ""
        return bias, _any(body, allowed) if body.input(_LENGTHS) else ""
    mask = _as_long(body, key)
    if body.inputs.dtype(_MASK) == "bool":
        allowed = _both(body, mask, allowed)
        return filtered(body, allowed, lowest(dtype), dtype), _any(body, allowed)
    least = body.constant(lowest(dtype), dtype)
    bias = body.add("Max", mask, least)
    allowed = _both(body, body.add("Less", body.constant(-inf, dtype), mask), allowed)
    return body.add("Where", allowed, bias, least), _any(body, allowed)


def _both(body: BodyBuilder, first: str, second: str) -> str:
    return body.add("And", first, second) if first and second else first or second


def _any(body: BodyBuilder, allowed: str) -> str:
    """Which queries see a key: a column."""
    count = body.add("ReduceSum", body.cast(allowed, _COUNTS), body.constant((-1,)))
    return body.add("Less", body.constant(0.0, _COUNTS), count)


def _as_long(body: BodyBuilder, key: str) -> str:
    """The mask with a column for each key."""
    mask, rank = body.input(_MASK), body.inputs.rank(_MASK)
    width, total = body.inputs.width(_MASK), _total(body)
    if width is not None and width == total:
        return mask
    if width == 1:
        raise body.invalid("has a mask of one column; expected one for each key")
    if body.node.since_version < _PADDED_SINCE:
        return mask
    missing = body.add("Sub", length_of(body, key, 2), length_of(body, mask, rank - 1))
    pads = body.add("Concat", body.constant((0,) * (2 * rank - 1)), missing, axis=0)
    if body.inputs.dtype(_MASK) != "bool":
        return body.add("Pad", mask, pads, body.constant(-inf, body.inputs.dtype(_MASK)))
    # Numbers are padded: few devices do that with truths.
    padded = body.add("Pad", body.cast(mask, _COUNTS), pads)
    return body.add("Less", body.constant(0.0, _COUNTS), padded)


def _total(body: BodyBuilder) -> int | None:
    """T, where it is a plain number."""
    steps = body.inputs.width(1, -2)
    past = body.inputs.width(_PAST_KEY, 2) if body.input(_PAST_KEY) else 0
    return None if steps is None or past is None else steps + past


def _behind(body: BodyBuilder, query: str, key: str) -> str:
    """`[S, T]` or `[B, 1, S, T]`: which keys do not stand behind a query's own; empty if all may be seen."""
    if not body.node.integer("is_causal", 0):
        return ""
    places = body.unsqueeze(steps_along(body, query, 2, body.inputs.width(0, -2)), 1)
    keys = body.unsqueeze(steps_along(body, key, 2, _total(body)), 0)
    if body.input(_PAST_KEY):
        places = body.add("Add", places, length_of(body, body.input(_PAST_KEY), 2))
    if not body.input(_LENGTHS):
        return body.add("LessOrEqual", keys, places)
    first = body.add("Sub", _lengths(body, key), body.cast(length_of(body, query, 2), _COUNTS))
    return body.add("LessOrEqual", body.cast(keys, _COUNTS), body.add("Add", first, body.cast(places, _COUNTS)))


def _within(body: BodyBuilder, key: str) -> str:
    """`[B, 1, 1, T]`: which keys are no padding; empty if none is."""
    if not body.input(_LENGTHS):
        return ""
    return body.add("Less", body.cast(steps_along(body, key, 2, _total(body)), _COUNTS), _lengths(body, key))


def _lengths(body: BodyBuilder, key: str) -> str:
    """`[B, 1, 1, 1]`: how many keys there are, looked up in a table of numbers, since few devices cast them."""
    count = body.add("Squeeze", body.add("Add", length_of(body, key, 2), body.constant((1,))))
    numbers = body.cast(body.add("Range", body.constant(0), count, body.constant(1)), _COUNTS)
    return body.reshape(body.add("Gather", numbers, body.input(_LENGTHS)), -1, 1, 1, 1)
