"""A small language model of the form of Llama with a cache, as exporters write one.

Roots of mean squares instead of normalizations, positions that turn keys and queries, keys and values that several
heads share, a gate. Inputs, outputs and cache are named as those of `language_model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.language_model import Sizes, Writer, cached_model

_TURNS = 10_000.0
"""The longest wave of positions."""


def llama_model(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return the model: `ids` [batch, length] and a cache -> `logits` and the cache, longer by `length`.

    The cache is `past.L.key` and `past.L.value` of every layer, [batch, kept heads, past, depth].
    """
    writer = Writer(seed)
    batch, length = writer.size("ids", 0), writer.size("ids", 1)
    past = writer.size("past.0.key", 2)
    total = writer.node("Add", past, length)
    one = writer.constant(np.int64(1))
    positions = writer.node("Range", past, total, one)
    hidden = _hidden(writer, positions, writer.node("Range", writer.constant(np.int64(0)), total, one))
    waves = _waves(writer, sizes, positions)
    x = writer.node("Gather", writer.weight(sizes.words, sizes.width), "ids")
    for layer in range(sizes.layers):
        x = _block(writer, sizes, layer, x, (batch, length), hidden, waves)
    writer.node("MatMul", _scaled(writer, x, sizes.width), writer.weight(sizes.width, sizes.words), output="logits")
    return cached_model("llama_model", writer, sizes)


def _hidden(writer: Writer, positions: str, every: str) -> str:
    """What is added to scores, [1, 1, length, total]: the least number where a position comes later."""
    later = writer.node(
        "Greater",
        writer.node("Unsqueeze", every, writer.constant([0])),
        writer.node("Unsqueeze", positions, writer.constant([1])),
    )
    least, zero = (writer.constant(np.float32(value)) for value in (np.finfo(np.float32).min, 0))
    return writer.node("Unsqueeze", writer.node("Where", later, least, zero), writer.constant([0, 1]))


def _waves(writer: Writer, sizes: Sizes, positions: str) -> tuple[str, str]:
    """Cosine and sine of every position, [length, depth]."""
    steps = _TURNS ** -(np.arange(0, sizes.depth, 2, dtype=np.float32) / sizes.depth)
    column = writer.node("Unsqueeze", writer.node("Cast", positions, to=TensorProto.FLOAT), writer.constant([1]))
    angles = writer.node("Mul", column, writer.constant(steps[None]))
    both = writer.node("Concat", angles, angles, axis=-1)
    return writer.node("Cos", both), writer.node("Sin", both)


def _turned(writer: Writer, x: str, depth: int, waves: tuple[str, str]) -> str:
    first, middle, last, axis = (writer.constant([each]) for each in (0, depth // 2, depth, -1))
    lower, upper = writer.node("Slice", x, first, middle, axis), writer.node("Slice", x, middle, last, axis)
    other = writer.node("Concat", writer.node("Neg", upper), lower, axis=-1)
    return writer.node("Add", writer.node("Mul", x, waves[0]), writer.node("Mul", other, waves[1]))


def _scaled(writer: Writer, x: str, width: int) -> str:
    """Over the root of the mean of squares."""
    squares = writer.node("ReduceMean", writer.node("Pow", x, writer.constant(np.float32(2))), axes=[-1], keepdims=1)
    root = writer.node("Sqrt", writer.node("Add", squares, writer.constant(np.float32(1e-6))))
    whole = writer.node("Mul", x, writer.node("Div", writer.constant(np.float32(1)), root))
    return writer.node("Mul", writer.constant(np.ones(width, np.float32)), whole)


def _heads(writer: Writer, sizes: Sizes, x: str, heads: int, rows: Sequence[str]) -> str:
    product = writer.node("MatMul", x, writer.weight(sizes.width, heads * sizes.depth))
    split = writer.node("Reshape", product, writer.shape(*rows, heads, sizes.depth))
    return writer.node("Transpose", split, perm=[0, 2, 1, 3])


def _shared(writer: Writer, sizes: Sizes, x: str, batch: str) -> str:
    """What is kept, once for each head: [batch, kept heads, total, depth] -> [batch, heads, total, depth]."""
    times, total = sizes.heads // sizes.kept_heads, writer.size(x, 2)
    wide = writer.node(
        "Expand",
        writer.node("Unsqueeze", x, writer.constant([2])),
        writer.shape(batch, sizes.kept_heads, times, total, sizes.depth),
    )
    return writer.node("Reshape", wide, writer.shape(batch, sizes.heads, total, sizes.depth))


def _block(
    writer: Writer, sizes: Sizes, layer: int, x: str, rows: Sequence[str], hidden: str, waves: tuple[str, str]
) -> str:
    width, depth = sizes.width, sizes.depth
    scaled = _scaled(writer, x, width)
    query, key, value = (
        _heads(writer, sizes, scaled, heads, rows) for heads in (sizes.heads, sizes.kept_heads, sizes.kept_heads)
    )
    query, key = (_turned(writer, each, depth, waves) for each in (query, key))
    keys, values = (
        writer.node("Concat", f"past.{layer}.{name}", new, output=f"present.{layer}.{name}", axis=2)
        for name, new in (("key", key), ("value", value))
    )
    keys, values = (_shared(writer, sizes, each, rows[0]) for each in (keys, values))
    scores = writer.node("MatMul", query, writer.node("Transpose", keys, perm=[0, 1, 3, 2]))
    masked = writer.node("Add", writer.node("Mul", scores, writer.constant(np.float32(depth**-0.5))), hidden)
    mixed = writer.node("MatMul", writer.node("Softmax", masked, axis=-1), values)
    joined = writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), writer.shape(*rows, width))
    x = writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width)))
    scaled = _scaled(writer, x, width)
    gate, up = (writer.node("MatMul", scaled, writer.weight(width, 3 * width)) for _ in range(2))
    gated = writer.node("Mul", writer.node("Mul", gate, writer.node("Sigmoid", gate)), up)
    return writer.node("Add", x, writer.node("MatMul", gated, writer.weight(3 * width, width)))
