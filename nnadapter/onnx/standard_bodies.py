"""Bodies of ONNX's own ops for devices without a kernel.

- Integer products use float32, exact up to 2^24; longer sums are split and added in int32.
- QLinearConv and QLinearMatMul compute on dequantized values. ONNX Runtime rescales integer sums, so results may differ
  by one step where a real is halfway between integers.
- Attention and RotaryEmbedding avoid casts and comparisons that few devices support, unlike ONNX's function bodies.
  Sizes: batch B, query heads N, key heads G, queries S, keys T including past keys P, head size H.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, prod, sqrt

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.onnx.body import OLDEST_OPSET, Body, BodyBuilder, BodyRule, length_of, range_to, steps_along
from nnadapter.onnx.construction import array_info
from nnadapter.onnx.graphs import value_of_type
from nnadapter.onnx.microsoft.attention import filtered, joined, lowest, separated, turned_plainly
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass, replace
from partition.graph import Reason, Value

_OLDEST_INTEGER = 11
"""First opset with bounds of Clip as inputs, and Round."""
_LARGEST = 255
"""Largest difference of 8-bit integers."""
_EXACT = 2**24
_OLDEST_QUANTIZED = 13
"""First opset with DequantizeLinear along an axis."""
_SPLIT_INPUT = 13
"""First opset in which Split has sizes as an input."""


def dynamic_quantize_linear_body(body: BodyBuilder) -> Sequence[str]:
    """Expand DynamicQuantizeLinear (ONNX version 11).

    All-zero inputs get scale 1, as in ONNX Runtime. QuantizeLinear is avoided, since devices round differently.
    """
    zero, unit_scale, steps = (body.constant(value, "float32") for value in (0, 1, _LARGEST))
    x = body.input(0)
    numbers = body.reshape(x, -1)
    low = body.Min(body.ReduceMin(numbers, keepdims=0), zero)
    high = body.Max(body.ReduceMax(numbers, keepdims=0), zero)
    width = body.Sub(high, low)
    scale = body.Where(body.Equal(width, zero), unit_scale, body.Div(width, steps))
    below = body.Sub(zero, body.Div(low, scale))
    point = body.Round(body.Clip(below, zero, steps))
    moved = body.Add(body.Round(body.Div(x, scale)), point)
    clipped = body.Clip(moved, zero, steps)
    # The values are integers already: this quantization changes none, but shows a device that they are.
    is_shown = body.opset >= _OLDEST_QUANTIZED and body.rank(0)
    y = body.QuantizeLinear(clipped, unit_scale, body.constant(0, "uint8")) if is_shown else body.cast(clipped, "uint8")
    return [y, scale, body.cast(point, "uint8")]


def mat_mul_integer_body(body: BodyBuilder) -> Sequence[str]:
    """Expand MatMulInteger (ONNX version 10); zero points may be per row of A and column of B."""
    rank, summed = body.rank(0), max(body.rank(1) - 2, 0)
    if _is_quantized(body):
        return [_quantized_product(body)]
    a, b = _centered(body, 0, (-1, 1)), _centered(body, 1, (-1,))
    if _is_known(body):
        weights = np.moveaxis(_magnitudes(body, (-1,)), summed, 0)
    else:
        weights = _unknown(body, body.width(1, summed) or body.width(0), 1)
    sizes = _parts(body, weights)
    pairs = zip(_cut(body, a, rank - 1, sizes), _cut(body, b, summed, sizes), strict=True)
    return [_sum(body, [body.MatMul(*pair) for pair in pairs])]


def _is_quantized(body: BodyBuilder) -> bool:
    """Return whether the node is a linear layer of quantize_dynamic, with a constant int8 matrix and zero point 0."""
    if body.opset < _OLDEST_QUANTIZED or not _is_known(body) or (body.input(3) and body.contents(3).any()):
        return False
    is_one = not body.input(2) or body.rank(2) == 0 or (body.rank(2) == 1 and body.width(2) == 1)
    ranks, dtypes = (body.rank(0), body.rank(1)), (body.dtype(0), body.dtype(1))
    return is_one and min(ranks) > 1 and ranks[1] == 2 and dtypes == ("uint8", "int8")


def _quantized_product(body: BodyBuilder) -> str:
    """Multiply, then subtract A's zero point times B's column sums, so that devices multiply integers."""
    weights = body.contents(1).astype(np.int16)
    sizes = _parts(body, np.abs(weights))
    unit_scale, point = body.constant(1, "float32"), body.cast(body.input(2), "float32") if body.input(2) else ""
    first, second = _cut(body, body.input(0), body.rank(0) - 1, sizes), _cut(body, body.input(1), 0, sizes)
    sums = []
    for a, b, part in zip(first, second, np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
        product = body.MatMul(body.DequantizeLinear(a, unit_scale), body.DequantizeLinear(b, unit_scale))
        columns = body.constant(part.sum(axis=0, dtype=np.int64), "float32")
        sums.append(body.Sub(product, body.Mul(point, columns)) if point else product)
    return _sum(body, sums)


def conv_integer_body(body: BodyBuilder) -> Sequence[str]:
    """Expand ConvInteger (ONNX version 10); padding has x's zero point."""
    along = (-1, *(1,) * (body.rank(1) - 1))
    pixels = tuple(range(2, len(along)))
    x, filters = _centered(body, 0, along), _centered(body, 1, along)
    if _is_known(body):
        weights = _magnitudes(body, along).sum(axis=pixels, dtype=np.int64).T
    else:
        window = [body.width(1, axis) for axis in pixels]
        weights = _unknown(body, body.width(1, 1), None if None in window else prod(filter(None, window)))
    sizes = _parts(body, weights)
    if len(sizes) > 1 and body.node.integer("group", 1) > 1:
        raise body.unsupported("group", "is above 1, but sums of products may exceed 2^24, the limit of exact float32")
    pairs = zip(_cut(body, x, 1, sizes), _cut(body, filters, 1, sizes), strict=True)
    return [_sum(body, [body.Conv(*pair, **body.node.attributes) for pair in pairs])]


def _centered(body: BodyBuilder, position: int, along: tuple[int, ...]) -> str:
    """Subtract an input's zero point from it, reshaped to `along` if per channel."""
    numbers, point = body.cast(body.input(position), "float32"), position + 2
    if not body.input(point) or (body.knows(point) and not body.contents(point).any()):
        return numbers
    points = body.cast(body.input(point), "float32")
    if body.rank(point) == 1 and body.width(point) != 1 and len(along) > 1:
        points = body.reshape(points, *along)
    return body.Sub(numbers, points)


def _is_known(body: BodyBuilder) -> bool:
    return body.knows(1) and (not body.input(3) or body.knows(3))


def _magnitudes(body: BodyBuilder, along: tuple[int, ...]) -> Array:
    weights = body.contents(1).astype(np.int16)
    points = body.contents(3).astype(np.int16) if body.input(3) else np.zeros((), np.int16)
    magnitudes: Array = np.abs(weights - (points.reshape(along) if points.ndim == 1 and points.size > 1 else points))
    return magnitudes


def _unknown(body: BodyBuilder, summed: int | None, window: int | None) -> Array:
    if summed is None or window is None:
        problem = f"the number of products that {body.node.op_type} sums is unknown, and so are its weights"
        raise Refusal(Reason.NOT_CONSTANT, problem)
    return np.full((summed, 1), _LARGEST * window)


def _parts(body: BodyBuilder, weights: Array) -> list[int]:
    """Return sizes of parts along the first axis of `weights`, such that sums within each part are exact in float32."""
    for count in range(1, len(weights) + 1):
        parts = np.array_split(weights, count)
        if all(part.sum(axis=0, dtype=np.int64).max(initial=0) * _LARGEST <= _EXACT for part in parts):
            return [len(part) for part in parts]
    raise body.unsupported(
        "kernel_shape", "has so many pixels that sums over one channel may exceed 2^24, the limit of exact float32"
    )


def _cut(body: BodyBuilder, name: str, axis: int, sizes: list[int]) -> Sequence[str]:
    if len(sizes) == 1:
        return [name]
    if body.opset < _SPLIT_INPUT:
        return body.add_several("Split", [name], len(sizes), axis=axis, split=sizes)
    return body.add_several("Split", [name, body.constant(sizes)], len(sizes), axis=axis)


def _sum(body: BodyBuilder, parts: Sequence[str]) -> str:
    total, *addends = (body.cast(part, "int32") for part in parts)
    for part in addends:
        total = body.Add(total, part)
    return total


def qlinear_conv_body(body: BodyBuilder) -> Sequence[str]:
    """Expand QLinearConv (ONNX version 10); filters may have per-channel scales."""
    x, filters = _dequantized(body, 0), _dequantized(body, 3, axis=0)
    bias = body.input(8)
    if bias:
        scale = body.Mul(_number(body, 1), _scale(body, 4))
        bias = body.DequantizeLinear(bias, scale, axis=0)
    return [_quantized(body, body.Conv(x, filters, bias, **body.node.attributes), 6)]


def qlinear_mat_mul_body(body: BodyBuilder) -> Sequence[str]:
    """Expand QLinearMatMul (ONNX version 21); scales may be per row of A and column of B."""
    first = _dequantized(body, 0, axis=body.rank(0) - 2)
    second = _dequantized(body, 3, axis=body.rank(3) - 1)
    return [_quantized(body, body.MatMul(first, second), 6)]


def _dequantized(body: BodyBuilder, position: int, axis: int | None = None) -> str:
    if axis is None:
        return body.DequantizeLinear(body.input(position), *_numbers(body, position + 1))
    steps = (_scale(body, position + 1), _scale(body, position + 2))
    return body.DequantizeLinear(body.input(position), *steps, axis=axis)


def _quantized(body: BodyBuilder, real: str, position: int) -> str:
    return body.QuantizeLinear(real, *_numbers(body, position))


def _numbers(body: BodyBuilder, position: int) -> tuple[str, str]:
    return _number(body, position), _number(body, position + 1)


def _number(body: BodyBuilder, position: int) -> str:
    if body.rank(position) == 0:
        return body.input(position)
    if body.rank(position) > 1 or body.width(position) != 1:
        raise body.invalid(f"has an input {position} of several numbers; expected one")
    return body.Squeeze(body.input(position))


def _scale(body: BodyBuilder, position: int) -> str:
    if body.rank(position) > 1:
        raise body.invalid(f"has an input {position} of rank {body.rank(position)}; expected 0 or 1")
    is_one = body.rank(position) == 0 or body.width(position) == 1
    return _number(body, position) if is_one else body.input(position)


_OLDEST_STABLE = 7
"""First opset with broadcasting Sub."""


def softplus_body(body: BodyBuilder) -> Sequence[str]:
    """Expand Softplus (ONNX version 1): Relu(x) - log(sigmoid(|x|)).

    log(exp(x) + 1) overflows from 89 on. In OpenVINO, it is off by 8e-6 near 0, and VITS divides by such results.
    """
    x = body.input(0)
    return [body.Sub(body.Relu(x), body.Log(body.Sigmoid(body.Abs(x))))]


_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = 3, 4, 5, 6
_SCORES = 3
_PADDED_SINCE = 24
"""First version of Attention that hides keys beyond the end of a shorter mask."""
_COUNTS = "float32"
"""Type of lengths: few devices compute in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    queries: int
    keys: int
    size: int
    """Head size of queries and keys."""
    wide: int
    """Head size of values."""


def attention_body(body: BodyBuilder) -> Sequence[str]:
    """Expand Attention (ONNX version 24); queries without visible keys yield 0.

    Refused: score output, windows, unknown head count or size, one-column masks.
    """
    if body.wants(_SCORES):
        raise body.unsupported("qk_matmul_output", "is read, but devices compute no scores", "output")
    for name in ("left_window_size", "right_window_size"):
        if body.node.integer(name, -1) >= 0:
            raise body.unsupported(name, "is 0 or more; expected -1, for no window")
    heads, dtype, packed = _heads(body), body.dtype(0), body.rank(0) == 3
    query, key, value = map(body.input, range(3))
    if packed:
        query = separated(body, query, heads.queries, head_size=heads.size)
        key = separated(body, key, heads.keys, head_size=heads.size)
        value = separated(body, value, heads.keys, head_size=heads.wide)
    if body.input(_PAST_KEY):
        key = body.Concat(body.input(_PAST_KEY), key, axis=2)
        value = body.Concat(body.input(_PAST_VALUE), value, axis=2)
    scale = body.node.number("scale", 1 / sqrt(heads.size))
    scaled = body.Mul(query, body.constant(scale, dtype))
    bias, sees = _mask(body, query, key)
    output = _weighted_values(body, (scaled, key, value), bias, heads)
    if sees:
        output = body.Where(sees, output, body.constant(0.0, dtype))
    return (joined(body, output, heads.queries * heads.wide) if packed else output), key, value


def rotary_embedding_body(body: BodyBuilder) -> Sequence[str]:
    """Expand RotaryEmbedding (ONNX version 23); tables may have a row per position."""
    packed, heads, width = body.rank(0) == 3, body.node.integer("num_heads", 0), body.width(0)
    pairs = body.width(1)
    if width is None or pairs is None or (packed and (heads < 1 or width % heads)):
        raise body.invalid("needs static widths of cos_cache and input, and num_heads must divide that of input")
    size = width // heads if packed else width
    if 2 * pairs != (body.node.integer("rotary_embedding_dim", 0) or size):
        raise body.invalid(f"has {pairs} columns in cos_cache for heads of {size} features; expected half that")
    x = separated(body, body.input(0), heads, head_size=size) if packed else body.input(0)
    cosine, sine = (
        body.Gather(body.input(position), body.input(3)) if body.input(3) else body.input(position)
        for position in (1, 2)
    )
    interleaved = body.node.integer("interleaved", 0) != 0
    rotated = turned_plainly(body, x, (cosine, sine), pairs, size, interleaved=interleaved)
    return [joined(body, rotated, width) if packed else rotated]


def _heads(body: BodyBuilder) -> _Heads:
    widths = [body.width(position) for position in range(3)]
    if body.rank(0) == 3:
        queries, keys = (body.node.integer(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        parts = (queries, keys, keys)
    else:
        queries, keys = (body.width(position, 1) or 0 for position in (0, 1))
        parts = (1, 1, 1)
    if queries < 1 or keys < 1 or queries % keys:
        raise body.invalid(f"has {queries} query heads; expected a multiple of the key heads, {keys}")
    if any(not width or width % part for width, part in zip(widths, parts, strict=True)):
        raise body.invalid(
            f"has Q, K and V of widths {widths}; expected static ones, multiples of {queries} query heads and {keys} "
            "key heads"
        )
    size, _, wide = (int(width or 0) // part for width, part in zip(widths, parts, strict=True))
    return _Heads(queries=queries, keys=keys, size=size, wide=wide)


def _weighted_values(body: BodyBuilder, parts: tuple[str, str, str], bias: str, heads: _Heads) -> str:
    query, key, value = parts
    share = heads.queries // heads.keys
    if share > 1:
        query = body.reshape(query, 0, heads.keys, share, -1, heads.size)
        key, value = body.unsqueeze(key, 2), body.unsqueeze(value, 2)
    order = [0, 1, 2, 4, 3] if share > 1 else [0, 1, 3, 2]
    scores = body.MatMul(query, body.Transpose(key, perm=order))
    softcap = body.node.number("softcap", 0.0)
    if softcap:
        cap = body.constant(softcap, body.dtype(0))
        scores = body.Mul(body.Tanh(body.Div(scores, cap)), cap)
    if bias:
        scores = body.Add(scores, _of_shared(body, bias, heads) if share > 1 else bias)
    output = body.MatMul(body.Softmax(scores, axis=-1), value)
    return body.reshape(output, 0, heads.queries, -1, heads.wide) if share > 1 else output


def _of_shared(body: BodyBuilder, bias: str, heads: _Heads) -> str:
    rank = 4 if body.input(_LENGTHS) else body.rank(_MASK) if body.input(_MASK) else 2
    if rank < 3:
        return bias
    count = body.width(_MASK, -3) if body.input(_MASK) and body.rank(_MASK) > 2 else 1
    if count not in (1, heads.queries):
        raise body.invalid(f"has a mask for {count} heads; expected 1 or {heads.queries}")
    if count == 1:
        return body.unsqueeze(bias, rank - 2)
    batched_bias = body.unsqueeze(bias, 0) if rank == 3 else bias
    shape = body.Concat(
        length_of(body, batched_bias, 0),
        body.constant((heads.keys, heads.queries // heads.keys)),
        length_of(body, batched_bias, 2),
        length_of(body, batched_bias, 3),
        axis=0,
    )
    return body.Reshape(batched_bias, shape)


def _mask(body: BodyBuilder, query: str, key: str) -> tuple[str, str]:
    """Return the additive bias, and a mask of queries that see any key; empty names without masking."""
    dtype = body.dtype(0)
    allowed = _both(body, _causal_mask(body, query, key), _within(body, key))
    if not body.input(_MASK):
        bias = filtered(body, allowed, lowest(dtype), dtype) if allowed else ""
        return bias, _any(body, allowed) if body.input(_LENGTHS) else ""
    mask = _as_long(body, key)
    if body.dtype(_MASK) == "bool":
        allowed = _both(body, mask, allowed)
        return filtered(body, allowed, lowest(dtype), dtype), _any(body, allowed)
    least = body.constant(lowest(dtype), dtype)
    bias = body.Max(mask, least)
    allowed = _both(body, body.Less(body.constant(-inf, dtype), mask), allowed)
    return body.Where(allowed, bias, least), _any(body, allowed)


def _both(body: BodyBuilder, first: str, second: str) -> str:
    return body.And(first, second) if first and second else first or second


def _any(body: BodyBuilder, allowed: str) -> str:
    count = body.ReduceSum(body.cast(allowed, _COUNTS), body.constant((-1,)))
    return body.Less(body.constant(0.0, _COUNTS), count)


def _as_long(body: BodyBuilder, key: str) -> str:
    mask, rank = body.input(_MASK), body.rank(_MASK)
    width, total = body.width(_MASK), _total(body)
    if width is not None and width == total:
        return mask
    if width == 1:
        raise body.invalid("has a mask of one column; expected one column for each key")
    if body.node.since_version < _PADDED_SINCE:
        return mask
    missing = body.Sub(length_of(body, key, 2), length_of(body, mask, rank - 1))
    pads = body.Concat(body.constant((0,) * (2 * rank - 1)), missing, axis=0)
    if body.dtype(_MASK) != "bool":
        return body.Pad(mask, pads, body.constant(-inf, body.dtype(_MASK)))
    # Numbers are padded, since few devices pad booleans.
    padded = body.Pad(body.cast(mask, _COUNTS), pads)
    return body.Less(body.constant(0.0, _COUNTS), padded)


def _total(body: BodyBuilder) -> int | None:
    steps = body.width(1, -2)
    past = body.width(_PAST_KEY, 2) if body.input(_PAST_KEY) else 0
    return None if steps is None or past is None else steps + past


def _causal_mask(body: BodyBuilder, query: str, key: str) -> str:
    """Return a mask `[S, T]` or `[B, 1, S, T]` of keys up to each query; an empty name if not causal."""
    if not body.node.integer("is_causal", 0):
        return ""
    places = body.unsqueeze(steps_along(body, query, 2, body.width(0, -2)), 1)
    keys = body.unsqueeze(steps_along(body, key, 2, _total(body)), 0)
    if body.input(_PAST_KEY):
        places = body.Add(places, length_of(body, body.input(_PAST_KEY), 2))
    if not body.input(_LENGTHS):
        return body.LessOrEqual(keys, places)
    first = body.Sub(_lengths(body, key), body.cast(length_of(body, query, 2), _COUNTS))
    return body.LessOrEqual(body.cast(keys, _COUNTS), body.Add(first, body.cast(places, _COUNTS)))


def _within(body: BodyBuilder, key: str) -> str:
    """Return a mask `[B, 1, 1, T]` of keys that are not padding; an empty name without lengths."""
    if not body.input(_LENGTHS):
        return ""
    return body.Less(body.cast(steps_along(body, key, 2, _total(body)), _COUNTS), _lengths(body, key))


def _lengths(body: BodyBuilder, key: str) -> str:
    """Return the valid keys per sequence, `[B, 1, 1, 1]`, by lookup of floats, since few devices cast int64."""
    count = body.Squeeze(body.Add(length_of(body, key, 2), body.constant((1,))))
    numbers = body.cast(range_to(body, count), _COUNTS)
    return body.reshape(body.Gather(numbers, body.input(_LENGTHS)), -1, 1, 1, 1)


_RULES: Mapping[str, tuple[BodyRule, int]] = {
    "Attention": (attention_body, OLDEST_OPSET),
    "ConvInteger": (conv_integer_body, _OLDEST_INTEGER),
    "DynamicQuantizeLinear": (dynamic_quantize_linear_body, _OLDEST_INTEGER),
    "MatMulInteger": (mat_mul_integer_body, _OLDEST_INTEGER),
    "QLinearConv": (qlinear_conv_body, OLDEST_OPSET),
    "QLinearMatMul": (qlinear_mat_mul_body, OLDEST_OPSET),
    "RotaryEmbedding": (rotary_embedding_body, OLDEST_OPSET),
    "Softplus": (softplus_body, _OLDEST_STABLE),
}
"""Op type -> body rule and its oldest opset."""


def has_standard_body(node: OnnxNode) -> bool:
    """Return whether this module has a rule for the op of a node."""
    return not node.domain and node.op_type in _RULES


def standard_body(
    node: OnnxNode, values: Sequence[Value | None], constants: Mapping[int, Array], opset: int
) -> Body | None:
    """Return the body of a node of ONNX's domain; None without a rule that accepts it."""
    if not has_standard_body(node):
        return None
    rule, oldest = _RULES[node.op_type]
    try:
        builder = BodyBuilder(node, values, constants, opset, oldest=oldest)
        return builder.finish(rule(builder))
    except Refusal:
        return None


def with_standard_bodies(body: Body, inputs: Sequence[Value | None], constants: Mapping[int, Array]) -> Body:
    """Replace the nodes of a body that have a `standard_body`."""
    value_facts = _PrecomputableValues.of(body, inputs, constants)
    inner_bodies = {node: standard_body(node, *value_facts.of_node(node), body.opset) for node in body.nodes}
    nodes = (inner_node for node in body.nodes for inner_node in _in_place(node, inner_bodies[node]))
    more = {
        _inside(node, name): contents
        for node, inner in inner_bodies.items()
        if inner is not None
        for name, contents in inner.constants.items()
    }
    return replace(body, nodes=tuple(nodes), constants={**body.constants, **more})


@dataclass(frozen=True, slots=True)
class _PrecomputableValues:
    values: Mapping[str, Value]
    contents: Mapping[str, Array]

    @classmethod
    def of(cls, body: Body, inputs: Sequence[Value | None], constants: Mapping[int, Array]) -> _PrecomputableValues:
        contents = {name: array for position, array in constants.items() if (name := body.inputs[position])}
        contents |= body.plain_constants()
        types = body.known_types(inputs, constants) | {
            name: array_info(name, content) for name, content in contents.items()
        }
        return cls({name: value_of_type(name, info.type) for name, info in types.items()}, contents)

    def of_node(self, node: OnnxNode) -> tuple[list[Value | None], dict[int, Array]]:
        contents = {at: self.contents[name] for at, name in enumerate(node.inputs) if name in self.contents}
        return [self.values.get(name, Value(name)) if name else None for name in node.inputs], contents


def _in_place(node: OnnxNode, inner: Body | None) -> Iterator[OnnxNode]:
    if inner is None:
        yield node
        return
    outer = {"": ""} | dict(zip(inner.inputs, node.inputs, strict=True))
    outer |= dict(zip(inner.outputs, node.outputs, strict=False))
    for inner_node in inner.nodes:
        read, outputs = (
            tuple(outer[name] if name in outer else _inside(node, name) for name in names)
            for names in (inner_node.inputs, inner_node.outputs)
        )
        yield replace(inner_node, inputs=read, outputs=outputs)


def _inside(node: OnnxNode, name: str) -> str:
    return f"{next(filter(None, node.outputs))}/{name}"
