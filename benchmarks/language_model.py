"""A small language model with a cache, as exporters write one: sizes are computed with nodes, and so is the mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_HIDDEN = -1e9
"""What is added to scores of positions that may not be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a model."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    kept: int = 0
    """Heads of the cache; 0 for as many as there are heads."""
    words: int = 5000
    positions: int = 1024

    @property
    def depth(self) -> int:
        """Numbers per head."""
        return self.width // self.heads

    @property
    def kept_heads(self) -> int:
        """Heads of the cache."""
        return self.kept or self.heads


class Writer:
    """Nodes and seeded weights, each named as it comes."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(seed)

    def node(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output, and return its name."""
        name = output or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"node_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant."""
        self.tensors.append(numpy_helper.from_array(np.asarray(value), f"constant_{len(self.tensors)}"))
        return self.tensors[-1].name

    def weight(self, *shape: int) -> str:
        """Add weights around 0."""
        return self.constant((self._generator.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32))

    def numbers(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw weights around 0 that keep sums over all but the first axis near 1."""
        scale = np.prod(shape[1:]) ** -0.5
        return (self._generator.standard_normal(shape) * scale).astype(np.float32)

    def size(self, value: str, axis: int) -> str:
        """Add what tells one size of a value."""
        return self.node("Gather", self.node("Shape", value), self.constant(np.int64(axis)))

    def shape(self, *sizes: str | int) -> str:
        """Add a shape of sizes that are computed, and of others."""
        zero = self.constant(np.array([0]))
        parts = [
            self.constant(np.array([size])) if isinstance(size, int) else self.node("Unsqueeze", size, zero)
            for size in sizes
        ]
        return self.node("Concat", *parts, axis=0)

    def normalized(self, x: str, width: int) -> str:
        """Add a layer normalization."""
        scale, bias = (self.constant(np.full(width, value, np.float32)) for value in (1, 0))
        return self.node("LayerNormalization", x, scale, bias, axis=-1)


def language_model(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return a model of the form of GPT-2: inputs `ids` [batch, length] and a cache, outputs `logits` and the cache.

    The cache is `past.L.key` and `past.L.value` of every layer, [batch, heads, past, depth]; it comes out as `present`,
    longer by `length`.
    """
    writer = Writer(seed)
    batch, length = writer.size("ids", 0), writer.size("ids", 1)
    past = writer.size("past.0.key", 2)
    total = writer.node("Add", past, length)
    one = writer.constant(np.int64(1))
    positions = writer.node("Range", past, total, one)
    seen = writer.node(
        "LessOrEqual",
        writer.node("Unsqueeze", writer.node("Range", writer.constant(np.int64(0)), total, one), writer.constant([0])),
        writer.node("Unsqueeze", positions, writer.constant([1])),
    )
    words, places = writer.weight(sizes.words, sizes.width), writer.weight(sizes.positions, sizes.width)
    x = writer.node("Add", writer.node("Gather", words, "ids"), writer.node("Gather", places, positions))
    for layer in range(sizes.layers):
        x = _block(writer, sizes, layer, x, (batch, length), seen)
    writer.node("MatMul", writer.normalized(x, sizes.width), writer.weight(sizes.width, sizes.words), output="logits")
    return cached_model("language_model", writer, sizes)


def cached_model(name: str, writer: Writer, sizes: Sizes) -> onnx.ModelProto:
    """Return what was written as a model: `ids` and a cache -> `logits` and the cache."""
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", sizes.words])]
    for part in cache_names(sizes):
        cache = ["batch", sizes.kept_heads, "past", sizes.depth]
        inputs.append(helper.make_tensor_value_info(f"past.{part}", TensorProto.FLOAT, cache))
        cache[2] = "total"
        outputs.append(helper.make_tensor_value_info(f"present.{part}", TensorProto.FLOAT, cache))
    graph = helper.make_graph(writer.nodes, name, inputs, outputs, writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _block(writer: Writer, sizes: Sizes, layer: int, x: str, rows: Sequence[str], seen: str) -> str:
    width, heads, depth = sizes.width, sizes.heads, sizes.depth
    normalized = writer.normalized(x, width)
    query, key, value = (
        writer.node(
            "Transpose",
            writer.node(
                "Reshape",
                writer.node("MatMul", normalized, writer.weight(width, width)),
                writer.shape(*rows, heads, depth),
            ),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    keys, values = (
        writer.node("Concat", f"past.{layer}.{name}", new, output=f"present.{layer}.{name}", axis=2)
        for name, new in (("key", key), ("value", value))
    )
    scores = writer.node("MatMul", query, writer.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = writer.node("Div", scores, writer.constant(np.float32(depth**0.5)))
    masked = writer.node("Where", seen, scaled, writer.constant(np.float32(_HIDDEN)))
    mixed = writer.node("MatMul", writer.node("Softmax", masked, axis=-1), values)
    joined = writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), writer.shape(*rows, width))
    x = writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width)))
    wide = writer.node("MatMul", writer.normalized(x, width), writer.weight(width, 4 * width))
    root = writer.node("Div", wide, writer.constant(np.float32(2**0.5)))
    gate = writer.node("Add", writer.node("Erf", root), writer.constant(np.float32(1)))
    half = writer.node("Mul", writer.node("Mul", wide, gate), writer.constant(np.float32(0.5)))
    return writer.node("Add", x, writer.node("MatMul", half, writer.weight(4 * width, width)))


def cache_names(sizes: Sizes) -> Iterator[str]:
    """What follows `past.` and `present.`, in the order of inputs and outputs."""
    return (f"{layer}.{name}" for layer in range(sizes.layers) for name in ("key", "value"))


def first_feed(sizes: Sizes, prompt: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
    """A feed with an empty cache."""
    empty = np.empty((1, sizes.kept_heads, 0, sizes.depth), np.float32)
    return {"ids": np.array([prompt], np.int64), **{f"past.{name}": empty for name in cache_names(sizes)}}
