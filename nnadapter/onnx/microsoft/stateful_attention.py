"""Bodies of stateful ops: grouped-query attention, linear attention, causal convolution.

GroupQueryAttention appends keys to caches of the lengths `seqlens_k`. If sizes and `total_sequence_length` show that
caches are empty, new keys are used directly. Otherwise keys are scattered (gathered, if sizes are dynamic), and masks
hide unused slots.
"""

from __future__ import annotations

import numpy as np

from nnadapter.onnx.body import BodyBuilder, function_op, length_of, parts_along, range_to, sliced, steps_along
from nnadapter.onnx.microsoft.attention import Scores, attention, filtered, lowest, separated, turned
from nnadapter.onnx.microsoft.elementwise import silu
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass
from partition.graph import Reason

_SCATTER_SINCE = 24
_EXPECTED = {
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}
_REFUSED_INPUTS = {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight", 16: "query_seqlens"}
_COUNTS = "float32"
"""Type of lengths: few devices compute in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    steps: int | None
    """Number of queries; None if sizes are unknown, which leaves the other fields unset."""
    total: int = 0
    """Number of keys in the longest sequence."""
    size: int = 0
    """Number of keys for which the cache has space."""
    is_first: bool = False
    """True if all caches are empty."""


@function_op(
    "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?",
    "output present_key? present_value? output_qk?",
    {
        "num_heads": int,
        "kv_num_heads": int,
        "scale": float,
        "softcap": float,
        "local_window_size": -1,
        "do_rotary": int,
        "rotary_interleaved": int,
        "smooth_softmax": -1,
        "causal": 1,
        "kv_cache_bit_width": int,
        "qk_output": 0,
        "sliding_window_cache": 0,
        "k_quant_type": "NONE",
        "v_quant_type": "NONE",
        "qk_norm_epsilon": 1e-6,
        "q_norm_epsilon": float,
        "k_norm_epsilon": float,
    },
    required=("num_heads", "kv_num_heads"),
)
def group_query_attention_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft GroupQueryAttention-1.

    Refused: integer caches, normalized queries, score output, a total length known only at run time.
    """
    _refuse(body)
    heads, groups = body.node.integer("num_heads"), body.node.integer("kv_num_heads")
    if groups < 1 or heads < 1 or heads % groups:
        raise body.invalid(f"has {heads} query heads; expected a multiple of the key heads, {groups}")
    query, key, value, head_size = _parts(body, heads, groups)
    cache = _cache(body)
    first = "" if cache.is_first else _first_positions(body, query, cache)
    if body.node.integer("do_rotary", 0):
        query, key = _turned(body, (query, key), head_size, cache, first)
    past = (body.input(3), body.input(4)) if cache.size or (first and body.input(3)) else None
    if first:
        both = [key, value]
        if past is not None:
            both = [_scattered(body, *pair, first, cache) for pair in zip(past, both, strict=True)]
        scores = _scores(body, cache, (query, both[0], first), head_size)
        output, _, _ = attention(body, query, both[0], both[1], scores, None, (heads, groups))
        return output, *both
    scores = _scores(body, cache, (query, key, ""), head_size)
    output, *both = attention(body, query, key, value, scores, None, (heads, groups))
    if past is not None and cache.size > cache.total:
        both = [
            body.Concat(new_part, sliced(body, past_part, 2, cache.total, 2**31 - 1), axis=2)
            for new_part, past_part in zip(both, past, strict=True)
        ]
    return output, *both


def _refuse(body: BodyBuilder) -> None:
    for name, expected in _EXPECTED.items():
        if body.node.attributes.get(name, expected) != expected:
            raise body.unsupported(name, f"is {body.node.attributes[name]!r}; expected {expected!r}")
    if body.node.integer("local_window_size") == 0:
        raise body.unsupported("local_window_size", "is 0, so that no query sees a key; expected 1 or more, or -1")
    if not body.node.integer("causal") and body.node.integer("local_window_size") > 0:
        raise body.unsupported(
            "local_window_size",
            "requires causal attention, but attribute 'causal' is 0; expected causal 1, or -1 for no window",
        )
    for position, name in _REFUSED_INPUTS.items():
        if body.input(position):
            raise body.unsupported(name, "is present; expected none", "input")
    if body.wants(3):
        raise body.unsupported("output_qk", "is read, but cannot be computed from ONNX ops", "output")


def _parts(body: BodyBuilder, heads: int, groups: int) -> tuple[str, str, str, int]:
    width = body.width(0)
    packed = not body.input(1)
    count = heads + 2 * groups if packed else heads
    if width is None or width % count:
        raise body.invalid(f"has queries of width {width}; expected a multiple of {count} heads")
    size = width // count
    names = [*map(body.input, range(3))]
    if packed:
        names = list(parts_along(body, names[0], -1, (heads * size, groups * size, groups * size)))
    query, key, value = (
        separated(body, name, number, head_size=size)
        for name, number in zip(names, (heads, groups, groups), strict=True)
    )
    return query, key, value, size


def _cache(body: BodyBuilder) -> _Cache:
    steps, size = body.size(0, 1), body.size(3, 2) if body.input(3) else 0
    if steps is None or size is None:
        return _Cache(steps=None)
    total = _total_length(body, steps, size)
    return _Cache(steps=steps, total=total, size=size, is_first=steps == total)


def _total_length(body: BodyBuilder, steps: int, size: int) -> int:
    stated = body.integers(6)
    if len(stated) != 1:
        raise body.invalid(f"has a total_sequence_length of {len(stated)} elements; expected one")
    total = stated[0]
    if total != size + steps and (total > size or total < steps):
        raise body.invalid(
            f"has a total_sequence_length of {total} for {steps} new keys and a cache of {size}; expected their sum, "
            "or a length between the two"
        )
    return total


def _first_positions(body: BodyBuilder, query: str, cache: _Cache) -> str:
    """Return the number of cached keys per sequence, `[B]`, which is the position of its first new key."""
    if cache.steps is not None:
        lengths = body.reshape(body.cast(body.input(5), "int64"), -1)
        cached_counts = body.Add(lengths, body.constant((1 - cache.steps,)))
        return _within(body, cached_counts, body.constant((max(cache.total, cache.size) - cache.steps,)), "int64")
    steps, lengths = _counted(body, query), body.reshape(body.cast(body.input(5), _COUNTS), -1)
    cached_counts = body.Sub(body.Add(lengths, body.constant((1,), _COUNTS)), steps)
    zero = body.constant((0,), _COUNTS)
    return body.Max(body.Where(body.Equal(steps, _total(body)), zero, cached_counts), zero)


def _total(body: BodyBuilder) -> str:
    return body.reshape(body.cast(body.input(6), _COUNTS), -1)


def _counted(body: BodyBuilder, x: str) -> str:
    return body.cast(length_of(body, x, 2), _COUNTS)


def _scattered(body: BodyBuilder, cached: str, added: str, first: str, cache: _Cache) -> str:
    if body.opset < _SCATTER_SINCE or cache.steps is None:
        return _gathered(body, cached, added, first, cache)
    missing = cache.total - cache.size
    if missing > 0:
        cached = body.Pad(cached, body.constant((0, 0, 0, 0, 0, 0, missing, 0)))
    return body.TensorScatter(cached, added, first, axis=2)


def _gathered(body: BodyBuilder, cached: str, fresh: str, first: str, cache: _Cache) -> str:
    begin = body.unsqueeze(first if cache.steps is None else body.cast(first, _COUNTS), 1)
    room, added, unit = _counted(body, cached), _counted(body, fresh), body.constant((1,), _COUNTS)
    most = body.Add(room, added)
    count = body.Squeeze(body.Min(body.Max(_total(body), room), most))
    steps = range_to(body, count, _COUNTS)
    places = body.unsqueeze(steps, 0)
    shifted = body.Sub(body.Add(places, room), begin)
    is_new = body.Less(places, body.Add(begin, added))
    last = body.Sub(most, unit)
    after_cached = body.Where(is_new, shifted, body.Min(places, last))
    chosen = body.Where(body.Less(places, begin), places, after_cached)
    texts = body.cast(body.Squeeze(length_of(body, cached, 0)), _COUNTS)
    numbers = range_to(body, texts, _COUNTS)
    offsets = body.unsqueeze(body.Mul(numbers, most), 1)
    source = body.cast(body.Add(chosen, offsets), "int32")
    rows = body.Transpose(body.Concat(cached, fresh, axis=2), perm=[0, 2, 1, 3])
    flat = body.reshape(rows, -1, body.node.integer("kv_num_heads"), body.width(3) or 0)
    source = _within_rows(body, source, flat)
    return body.Transpose(body.Gather(flat, source, axis=0), perm=[0, 2, 1, 3])


def _within_rows(body: BodyBuilder, indices: str, table: str, rows: int | None = None) -> str:
    """Clamp int32 indices to the rows of `table`, so that devices know their range."""
    if rows is not None:
        return _within(body, indices, body.constant(rows - 1, "int32"), "int32")
    last = body.Sub(body.cast(length_of(body, table, 0), "int32"), body.constant((1,), "int32"))
    return _within(body, indices, last, "int32")


def _within(body: BodyBuilder, x: str, most: str, dtype: str) -> str:
    return body.Min(body.Max(x, body.constant((0,), dtype)), most)


def _turned(body: BodyBuilder, parts: tuple[str, str], head_size: int, cache: _Cache, first: str) -> tuple[str, str]:
    pairs = body.width(7)
    if pairs is None:
        raise body.invalid("needs a cos_cache of static width")
    positions = _positions(body, parts[0], cache, first)
    tables = []
    for position in (7, 8):
        if positions:
            tables.append(body.Gather(body.input(position), positions))
        else:
            tables.append(body.unsqueeze(sliced(body, body.input(position), 0, 0, cache.steps or 0), 0))
    interleaved = body.node.integer("rotary_interleaved", 0) != 0
    query, key = (
        turned(body, part, (tables[0], tables[1]), pairs, head_size, interleaved=interleaved) for part in parts
    )
    return query, key


def _positions(body: BodyBuilder, query: str, cache: _Cache, first: str) -> str:
    """Return positions of new keys `[B or 1, S]`, or an empty name if they count from 0.

    In a prompt, positions of every sequence count from the first position id.
    """
    stated = body.input(9)
    if not stated and not first:
        return ""
    if stated and cache.steps is not None and not cache.is_first:
        return stated
    counted = _counted_positions(body, query, cache, first)
    return _within_rows(body, body.cast(counted, "int32"), body.input(7), body.width(7, 0))


def _counted_positions(body: BodyBuilder, query: str, cache: _Cache, first: str) -> str:
    stated, steps = body.input(9), _steps(body, query, cache.steps, cache)
    if not stated:
        return body.Add(body.unsqueeze(first, 1), steps)
    if cache.steps is not None:
        begin = sliced(body, body.reshape(stated, -1), 0, 0, 1)
        return body.unsqueeze(body.Add(begin, steps), 0)
    stated = _read_positions(body, stated)
    begin = sliced(body, body.reshape(stated, -1), 0, 0, 1)
    counted = body.unsqueeze(body.Add(begin, steps), 0)
    is_prompt = body.Equal(_counted(body, query), _total(body))
    return body.Where(is_prompt, counted, stated)


def _read_positions(body: BodyBuilder, stated: str) -> str:
    """Convert position ids to floats by table lookup, since few devices cast int64."""
    rows = body.width(7, 0)
    if rows is None:
        return body.cast(stated, _COUNTS)
    return body.Gather(body.constant(np.arange(rows), _COUNTS), stated)


def _scores(body: BodyBuilder, cache: _Cache, names: tuple[str, str, str], head_size: int) -> Scores:
    first = names[2]
    dtype, causal = body.dtype(), body.node.integer("causal") != 0
    window = body.node.integer("local_window_size")
    mask = body.input(10)
    if first or window >= 0 or not causal:
        hidden_keys = _mask(body, cache, names, window, causal=causal)
        mask = body.Add(_as_wide(body, mask, names[1], cache), hidden_keys) if mask else hidden_keys
    sink = ""
    if body.input(11):
        sink = body.cast(body.reshape(body.input(11), 1, -1, 1, 1), dtype)
    elif body.node.integer("smooth_softmax") == 1:
        sink = body.constant(0.0, dtype)
    return Scores(
        scale=body.node.number("scale", 0.0) or None,
        head_size=head_size,
        causal=causal and not first,
        softcap=body.node.number("softcap", 0.0),
        mask=mask,
        sink=sink,
        sizes=(cache.steps, None if cache.steps is None else cache.total, 0),
    )


def _mask(body: BodyBuilder, cache: _Cache, names: tuple[str, str, str], window: int, *, causal: bool) -> str:
    """Return the additive mask `[B or 1, 1, S or 1, T]`.

    It hides keys after the query (without `causal`, after the sequence), and keys before the window.
    """
    query, key, first = names
    columns = _steps(body, key, None if cache.steps is None else _columns(cache, first), cache)
    if not causal:
        dtype = _COUNTS if cache.steps is None else "int64"
        places = body.reshape(body.cast(body.input(5), dtype), -1, 1, 1, 1)
    elif first:
        steps = body.reshape(_steps(body, query, cache.steps, cache), 1, 1, -1, 1)
        places = body.Add(steps, body.reshape(first, -1, 1, 1, 1))
    else:
        places = body.reshape(columns, 1, 1, -1, 1)
    allowed = body.LessOrEqual(columns, places)
    if window >= 0:
        # Less, since a device may compute Greater of reals differently and refuse it.
        width = body.constant(window, _COUNTS if cache.steps is None else "int64")
        allowed = body.And(allowed, body.Less(body.Sub(places, width), columns))
    return filtered(body, allowed, lowest(body.dtype()), body.dtype())


def _columns(cache: _Cache, first: str) -> int:
    return max(cache.total, cache.size) if first else cache.total


def _as_wide(body: BodyBuilder, bias: str, key: str, cache: _Cache) -> str:
    if cache.steps is None:
        padding = body.Sub(length_of(body, key, 2), length_of(body, bias, 3))
        return body.Pad(bias, body.Concat(body.constant((0,) * 7), padding, axis=0))
    room = cache.size - cache.total
    if cache.is_first or room <= 0:
        return bias
    return body.Pad(bias, body.constant((0, 0, 0, 0, 0, 0, 0, room)))


def _steps(body: BodyBuilder, x: str, size: int | None, cache: _Cache) -> str:
    steps = steps_along(body, x, 2, size)
    return body.cast(steps, _COUNTS) if cache.steps is None else steps


_END = 2**31 - 1
_ELSEWHERE = {
    "input_channel_offset": 0,
    "input_channels": 0,
    "state_channels_last": -1,
    "state_length": 0,
    "state_update_capacity": 0,
}
"""Attributes that ONNX Runtime's CPU kernel does not support, with their neutral values."""

_STATES_SINCE = 27


@function_op(
    "LinearAttention",
    "query key value past_state? decay? beta?",
    "output present_state",
    {
        "chunk_size": 64,
        "kv_num_heads": int,
        "q_num_heads": int,
        "scale": 0.0,
        "state_window": 0,
        "update_rule": "gated_delta",
    },
    required=("q_num_heads", "kv_num_heads"),
    newest=_STATES_SINCE,
)
def linear_attention_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft LinearAttention-1. Queries and keys are repeated if values have more heads.

    Refused: several states, and opsets without LinearAttention.
    """
    node, heads, groups = body.node, body.node.integer("q_num_heads"), body.node.integer("kv_num_heads")
    if node.integer("state_window"):
        raise body.unsupported("state_window", f"is {node.integer('state_window')}; expected 0")
    if body.opset < _STATES_SINCE:
        raise Refusal(
            Reason.UNSUPPORTED_VERSION, f"LinearAttention is in opset {body.opset}, expected {_STATES_SINCE} or newer"
        )
    names = [*map(body.input, range(6))]
    if 0 < heads < groups:
        names[:2] = [_repeated(body, position, heads, groups) for position in (0, 1)]
    stated = {name: node.attributes.get(name) for name in ("chunk_size", "scale", "update_rule")}
    stated |= {"q_num_heads": max(heads, groups), "kv_num_heads": groups}
    return body.add_several("LinearAttention", names, 2, **stated)


def _repeated(body: BodyBuilder, position: int, heads: int, groups: int) -> str:
    queries, width, name = body.width(0), body.width(position), body.input(position)
    if queries is None or width is None or queries % heads or groups % heads:
        raise body.invalid(
            f"has queries of width {queries} in {heads} heads for {groups} value heads; expected the width and "
            "the number of value heads to be multiples of the number of query heads"
        )
    depth = queries // heads
    if width == groups * depth:
        return name
    grouped = body.reshape(name, 0, 0, heads, 1, depth)
    tiled = body.Tile(grouped, body.constant((1, 1, 1, groups // heads, 1)))
    return body.reshape(tiled, 0, 0, groups * depth)


@function_op(
    "CausalConvWithState",
    "input weight bias? past_state?",
    "output present_state state_update?",
    {
        **_ELSEWHERE,
        "activation": "none",
        "channels_last": 0,
        "dilation": 1,
        "ndim": 1,
        "state_window": 0,
    },
    newest=_STATES_SINCE,
)
def causal_conv_with_state_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft CausalConvWithState-1.

    Refused: several axes or states, and attributes that the CPU kernel does not support.
    """
    _refuse_forms(body)
    last, dilation = body.node.integer("channels_last"), body.node.integer("dilation")
    activation = body.node.text("activation")
    if body.opset >= _STATES_SINCE and not last and dilation == 1:
        inputs = tuple(map(body.input, range(4)))
        return body.add_several("CausalConvWithState", inputs, 2, activation=activation)
    channels, taps = body.width(1, 0), body.width(1, 2)
    if channels is None or taps is None:
        raise body.invalid("needs a filter of static size")
    x, past = (_channels_first(body, position) if last else body.input(position) for position in (0, 3))
    length = (taps - 1) * dilation
    extended = body.Concat(past, x, axis=2) if past else _padded(body, x, length)
    output = body.Conv(extended, body.input(1), body.input(2), group=channels, dilations=[dilation])
    present = sliced(body, extended, 2, -length, _END) if length else sliced(body, extended, 2, 0, 0)
    if activation != "none":
        output = silu(body, output)
    if last:
        return _as_given(body, output), _as_given(body, present)
    return output, present


def _refuse_forms(body: BodyBuilder) -> None:
    for name, usual in {**_ELSEWHERE, "state_window": 0, "ndim": 1}.items():
        if (stated := body.node.integer(name)) != usual:
            raise body.unsupported(name, f"is {stated}; expected {usual}")
    if (activation := body.node.text("activation")) not in ("none", "silu", "swish"):
        raise body.invalid(f"has attribute 'activation' {activation!r}; expected none, silu or swish")


def _padded(body: BodyBuilder, x: str, length: int) -> str:
    zero = body.constant(0.0, body.dtype())
    return body.Pad(x, body.constant((0, 0, length, 0, 0, 0)), zero) if length else x


def _channels_first(body: BodyBuilder, position: int) -> str:
    name = body.input(position)
    if not name:
        return ""
    flat = name if body.rank(position) == 3 else body.reshape(name, 0, 0, body.width(1, 0) or -1)
    return body.Transpose(flat, perm=(0, 2, 1))


def _as_given(body: BodyBuilder, x: str) -> str:
    """Transpose [B, C, S] to [B, S, C], and split C into the first input's axes from 2 on."""
    turned, rank = body.Transpose(x, perm=(0, 2, 1)), body.rank(0)
    if rank == 3:
        return turned
    sizes = [body.width(0, axis) for axis in range(2, rank)]
    static_sizes = [size for size in sizes if size is not None]
    if len(static_sizes) == len(sizes):
        return body.reshape(turned, 0, 0, *static_sizes)
    channels = sliced(body, body.Shape(body.input(0)), 0, 2, rank)
    return body.Reshape(turned, body.Concat(body.constant((0, 0)), channels, axis=0))


@function_op("LinearAttentionGate", "a dt_bias decay_scale b?", "decay beta?")
def linear_attention_gate_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft LinearAttentionGate-1: state decay and token weights."""
    dtype = body.dtype(0)
    shifted = body.Add(body.cast(body.input(0), "float32"), body.input(1))
    decay = body.cast(body.Mul(body.Softplus(shifted), body.input(2)), dtype)
    if not body.input(3):
        return decay, ""
    return decay, body.cast(body.Sigmoid(body.cast(body.input(3), "float32")), dtype)
