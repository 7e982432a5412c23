"""Small language models with a cache, as exporters write them: GPT-2, Llama, merged decoders, fused attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.writer import Writer

_OPSET = 17
_HIDDEN = -1e9
"""Score of masked positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    kept: int = 0
    """Heads of the cache; 0 for as many as there are heads."""
    words: int = 5000
    positions: int = 1024

    @property
    def depth(self) -> int:
        """Size of a head."""
        return self.width // self.heads

    @property
    def kept_heads(self) -> int:
        """Heads of the cache."""
        return self.kept or self.heads


def language_model(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return a model like GPT-2: inputs `ids` [batch, length] and a cache, outputs `logits` and the cache.

    The cache is `past.L.key` and `past.L.value` of every layer, [batch, heads, past, depth]; it comes out as `present`,
    longer by `length`.
    """
    writer = Writer(seed)
    batch, length = writer.size("ids", 0), writer.size("ids", 1)
    past = writer.size("past.0.key", 2)
    total = writer.node("Add", past, length)
    unit = writer.constant(np.int64(1))
    positions = writer.node("Range", past, total, unit)
    mask = writer.node(
        "LessOrEqual",
        writer.node("Unsqueeze", writer.node("Range", writer.constant(np.int64(0)), total, unit), writer.constant([0])),
        writer.node("Unsqueeze", positions, writer.constant([1])),
    )
    words, places = writer.weight(sizes.words, sizes.width), writer.weight(sizes.positions, sizes.width)
    x = writer.node("Add", writer.node("Gather", words, "ids"), writer.node("Gather", places, positions))
    for layer in range(sizes.layers):
        x = _block(writer, sizes, layer, x, (batch, length), mask)
    writer.node("MatMul", writer.normalized(x, sizes.width), writer.weight(sizes.width, sizes.words), output="logits")
    return cached_model("language_model", writer, sizes)


def cached_model(name: str, writer: Writer, sizes: Sizes) -> onnx.ModelProto:
    """Return the written nodes as a model: `ids` and a cache -> `logits` and the cache."""
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", sizes.words])]
    for part in cache_names(sizes):
        cache = ["batch", sizes.kept_heads, "past", sizes.depth]
        inputs.append(helper.make_tensor_value_info(f"past.{part}", TensorProto.FLOAT, cache))
        cache[2] = "total"
        outputs.append(helper.make_tensor_value_info(f"present.{part}", TensorProto.FLOAT, cache))
    graph = helper.make_graph(writer.nodes, name, inputs, outputs, writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _block(writer: Writer, sizes: Sizes, layer: int, x: str, rows: Sequence[str], mask: str) -> str:
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
        writer.node("Concat", f"past.{layer}.{name}", projection, output=f"present.{layer}.{name}", axis=2)
        for name, projection in (("key", key), ("value", value))
    )
    scores = writer.node("MatMul", query, writer.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scaled = writer.node("Div", scores, writer.constant(np.float32(depth**0.5)))
    masked = writer.node("Where", mask, scaled, writer.constant(np.float32(_HIDDEN)))
    mixed = writer.node("MatMul", writer.node("Softmax", masked, axis=-1), values)
    joined = writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), writer.shape(*rows, width))
    x = writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width)))
    wide = writer.node("MatMul", writer.normalized(x, width), writer.weight(width, 4 * width))
    root = writer.node("Div", wide, writer.constant(np.float32(2**0.5)))
    gate = writer.node("Add", writer.node("Erf", root), writer.constant(np.float32(1)))
    half = writer.node("Mul", writer.node("Mul", wide, gate), writer.constant(np.float32(0.5)))
    return writer.node("Add", x, writer.node("MatMul", half, writer.weight(4 * width, width)))


def cache_names(sizes: Sizes) -> Iterator[str]:
    """Return the names after `past.` and `present.`, in the order of inputs and outputs."""
    return (f"{layer}.{name}" for layer in range(sizes.layers) for name in ("key", "value"))


def first_feed(sizes: Sizes, prompt: Sequence[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a feed with an empty cache."""
    empty = np.empty((1, sizes.kept_heads, 0, sizes.depth), np.float32)
    return {"ids": np.array([prompt], np.int64), **{f"past.{name}": empty for name in cache_names(sizes)}}


_TURNS = 10_000.0
"""Base of the rotary embedding."""


def llama_model(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return the model: `ids` [batch, length] and a cache -> `logits` and the cache, longer by `length`.

    The cache is `past.L.key` and `past.L.value` of every layer, [batch, kept heads, past, depth].
    """
    writer = Writer(seed)
    batch, length = writer.size("ids", 0), writer.size("ids", 1)
    past = writer.size("past.0.key", 2)
    total = writer.node("Add", past, length)
    unit = writer.constant(np.int64(1))
    positions = writer.node("Range", past, total, unit)
    hidden = _mask_of_positions(writer, positions, writer.node("Range", writer.constant(np.int64(0)), total, unit))
    waves = _waves(writer, sizes, positions)
    x = writer.node("Gather", writer.weight(sizes.words, sizes.width), "ids")
    for layer in range(sizes.layers):
        x = _llama_block(writer, sizes, layer, x, (batch, length), hidden, waves)
    writer.node(
        "MatMul", _root_normalized(writer, x, sizes.width), writer.weight(sizes.width, sizes.words), output="logits"
    )
    return cached_model("llama_model", writer, sizes)


def _mask_of_positions(writer: Writer, positions: str, every: str) -> str:
    """Add the causal mask for scores, [1, 1, length, total]."""
    later = writer.node(
        "Greater",
        writer.node("Unsqueeze", every, writer.constant([0])),
        writer.node("Unsqueeze", positions, writer.constant([1])),
    )
    least, zero = (writer.constant(np.float32(value)) for value in (np.finfo(np.float32).min, 0))
    return writer.node("Unsqueeze", writer.node("Where", later, least, zero), writer.constant([0, 1]))


def _waves(writer: Writer, sizes: Sizes, positions: str) -> tuple[str, str]:
    """Add cosines and sines of every position, [length, depth]."""
    steps = _TURNS ** -(np.arange(0, sizes.depth, 2, dtype=np.float32) / sizes.depth)
    column = writer.node("Unsqueeze", writer.node("Cast", positions, to=TensorProto.FLOAT), writer.constant([1]))
    angles = writer.node("Mul", column, writer.constant(steps[None]))
    both = writer.node("Concat", angles, angles, axis=-1)
    return writer.node("Cos", both), writer.node("Sin", both)


def _rotated(writer: Writer, x: str, depth: int, waves: tuple[str, str]) -> str:
    first, middle, last, axis = (writer.constant([position]) for position in (0, depth // 2, depth, -1))
    lower, upper = writer.node("Slice", x, first, middle, axis), writer.node("Slice", x, middle, last, axis)
    other = writer.node("Concat", writer.node("Neg", upper), lower, axis=-1)
    return writer.node("Add", writer.node("Mul", x, waves[0]), writer.node("Mul", other, waves[1]))


def _root_normalized(writer: Writer, x: str, width: int) -> str:
    """Add a division by the root mean square."""
    squares = writer.node("ReduceMean", writer.node("Pow", x, writer.constant(np.float32(2))), axes=[-1], keepdims=1)
    root = writer.node("Sqrt", writer.node("Add", squares, writer.constant(np.float32(1e-6))))
    normalized = writer.node("Mul", x, writer.node("Div", writer.constant(np.float32(1)), root))
    return writer.node("Mul", writer.constant(np.ones(width, np.float32)), normalized)


def _llama_heads(writer: Writer, sizes: Sizes, x: str, heads: int, rows: Sequence[str]) -> str:
    product = writer.node("MatMul", x, writer.weight(sizes.width, heads * sizes.depth))
    split = writer.node("Reshape", product, writer.shape(*rows, heads, sizes.depth))
    return writer.node("Transpose", split, perm=[0, 2, 1, 3])


def _repeated_heads(writer: Writer, sizes: Sizes, x: str, batch: str) -> str:
    """Repeat keys or values for each head: [batch, kept heads, total, depth] -> [batch, heads, total, depth]."""
    times, total = sizes.heads // sizes.kept_heads, writer.size(x, 2)
    wide = writer.node(
        "Expand",
        writer.node("Unsqueeze", x, writer.constant([2])),
        writer.shape(batch, sizes.kept_heads, times, total, sizes.depth),
    )
    return writer.node("Reshape", wide, writer.shape(batch, sizes.heads, total, sizes.depth))


def _llama_block(
    writer: Writer, sizes: Sizes, layer: int, x: str, rows: Sequence[str], hidden: str, waves: tuple[str, str]
) -> str:
    width, depth = sizes.width, sizes.depth
    scaled = _root_normalized(writer, x, width)
    query, key, value = (
        _llama_heads(writer, sizes, scaled, heads, rows) for heads in (sizes.heads, sizes.kept_heads, sizes.kept_heads)
    )
    query, key = (_rotated(writer, projection, depth, waves) for projection in (query, key))
    keys, values = (
        writer.node("Concat", f"past.{layer}.{name}", projection, output=f"present.{layer}.{name}", axis=2)
        for name, projection in (("key", key), ("value", value))
    )
    keys, values = (_repeated_heads(writer, sizes, projection, rows[0]) for projection in (keys, values))
    scores = writer.node("MatMul", query, writer.node("Transpose", keys, perm=[0, 1, 3, 2]))
    masked = writer.node("Add", writer.node("Mul", scores, writer.constant(np.float32(depth**-0.5))), hidden)
    mixed = writer.node("MatMul", writer.node("Softmax", masked, axis=-1), values)
    joined = writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), writer.shape(*rows, width))
    x = writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width)))
    scaled = _root_normalized(writer, x, width)
    gate, up = (writer.node("MatMul", scaled, writer.weight(width, 3 * width)) for _ in range(2))
    gated = writer.node("Mul", writer.node("Mul", gate, writer.node("Sigmoid", gate)), up)
    return writer.node("Add", x, writer.node("MatMul", gated, writer.weight(3 * width, width)))


CHOOSES = "use_cache"


def merged_decoder(sizes: Sizes, seed: int = 0) -> onnx.ModelProto:
    """Return `language_model` with another input: whether the cache is read. If not, the cache may hold anything."""
    plain = language_model(sizes, seed)
    graph, opset = plain.graph, plain.opset_import
    chooses = helper.make_tensor_value_info(CHOOSES, TensorProto.BOOL, [1])
    branches = {
        "then_branch": _captured_branch(graph, "with", graph.node),
        "else_branch": _captured_branch(graph, "without", _without_cache(graph)),
    }
    node = helper.make_node("If", [CHOOSES], [value.name for value in graph.output], "choose", **branches)
    outer = helper.make_graph([node], "merged", [*graph.input, chooses], graph.output, graph.initializer)
    return helper.make_model(outer, opset_imports=opset, ir_version=plain.ir_version)


def _captured_branch(graph: onnx.GraphProto, name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """Return nodes as a branch that captures the inputs and weights of the outer graph."""
    produced = {value for node in nodes for value in node.output}
    branch_nodes = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for values in (copy.input, copy.output):
            values[:] = [f"{name}.{value}" if value in produced else value for value in values]
        branch_nodes.append(copy)
    outputs = []
    for value in graph.output:
        info = onnx.ValueInfoProto()
        info.CopyFrom(value)
        info.name = f"{name}.{value.name}"
        outputs.append(info)
    return helper.make_graph(branch_nodes, name, [], outputs)


def _without_cache(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes without a cache: nothing is concatenated, and the cache has size 0."""
    past = {value.name for value in graph.input if value.name.startswith("past.")}
    nodes = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if past.intersection(node.input):
            remaining = [value for value in node.input if value not in past]
            copy = (
                helper.make_node("Identity", remaining, node.output, node.name)
                if remaining
                else helper.make_node("Constant", [], node.output, node.name, value_ints=[0, 0, 0, 0])
            )
        nodes.append(copy)
    return nodes


_DOMAIN = {"domain": "com.microsoft"}
_BLOCK = 32
"""Quantized weights that share a scale."""


def group_query_model(
    sizes: Sizes, seed: int = 0, *, packed: bool = False, window: int = -1, bits: int = 0, places: str = ""
) -> onnx.ModelProto:
    """Return the model: `ids`, `mask` and a cache -> `logits` and the cache, longer by the length of `ids`.

    Args:
        sizes: of the model.
        seed: of its weights.
        packed: one product makes queries, keys and values.
        window: how many keys a query sees; -1 for all.
        bits: of the weights of products and of the table of words, in blocks of 32; 0 for reals.
        places: "stated" or "turned apart" where they are an input, which attention or a node before it reads.
    """
    writer = Writer(seed)

    def product(x: str, depth: int, units: int) -> str:
        if bits:
            return _quantized_product(writer, x, depth, units, bits)
        return writer.node("MatMul", x, writer.weight(depth, units))

    lengths, total = _sequence_lengths(writer)
    tables = _rotation_tables(writer, sizes)
    words = _quantized_lookup(writer, sizes, bits) if bits else writer.weight(sizes.words, sizes.width)
    x = words if bits else writer.node("Gather", words, "ids")
    scale = writer.constant(np.ones(sizes.width, np.float32))
    normal = writer.node("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-5)
    shared = sizes.kept_heads * sizes.depth
    for layer in range(sizes.layers):
        if packed:
            parts = [product(normal, sizes.width, sizes.width + 2 * shared), "", ""]
        else:
            widths = (sizes.width, shared, shared)
            parts = [product(normal, sizes.width, width) for width in widths]
        if places == "turned apart":
            parts[:2] = [writer.node("RotaryEmbedding", part, "places", *tables, **_DOMAIN) for part in parts[:2]]
        read = {"": tables, "stated": [*tables, "places"], "turned apart": []}[places]
        cache = [f"past.{layer}.key", f"past.{layer}.value"]
        attended = f"seen_{layer}"
        writer.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*parts, *cache, lengths, total, *read],
                [attended, f"present.{layer}.key", f"present.{layer}.value"],
                f"attention_{layer}",
                num_heads=sizes.heads,
                kv_num_heads=sizes.kept_heads,
                do_rotary=int(bool(read)),
                local_window_size=window,
                **_DOMAIN,
            )
        )
        x, normal = _sum_and_norm(writer, sizes, x, product(attended, sizes.width, sizes.width))
        gate, up = (product(normal, sizes.width, 2 * sizes.width) for _ in range(2))
        gated = writer.node("Mul", writer.node("Mul", gate, writer.node("Sigmoid", gate)), up)
        x, normal = _sum_and_norm(writer, sizes, x, product(gated, 2 * sizes.width, sizes.width))
    writer.node("MatMul", normal, writer.weight(sizes.width, sizes.words), output="logits")
    return _group_query_interface(writer, sizes, ["places"] if places else [])


def _sequence_lengths(writer: Writer) -> tuple[str, str]:
    """Add the last position of every text, and the length of the longest."""
    counted = writer.node("ReduceSum", "mask", writer.constant([1]), keepdims=0)
    lengths = writer.node("Sub", counted, writer.constant(np.int64(1)))
    total = writer.node("Gather", writer.node("Shape", "mask"), writer.constant(np.int64(1)), axis=0)
    return writer.node("Cast", lengths, to=TensorProto.INT32), writer.node("Cast", total, to=TensorProto.INT32)


def _rotation_tables(writer: Writer, sizes: Sizes) -> list[str]:
    """Add cosines and sines of every position."""
    speeds = _TURNS ** -(np.arange(0, sizes.depth, 2) / sizes.depth)
    angles = np.arange(sizes.positions)[:, None] * speeds
    return [writer.constant(table.astype(np.float32)) for table in (np.cos(angles), np.sin(angles))]


def _quantized_lookup(writer: Writer, sizes: Sizes, bits: int) -> str:
    """Add a lookup of words in a quantized table."""
    blocks = sizes.width // _BLOCK
    table = np.abs(writer.numbers(sizes.words, sizes.width * bits // 8) * 1000).astype(np.uint8)
    scale = np.full((sizes.words, blocks), 1 / (1 << bits), np.float32)
    read = [writer.constant(table), "ids", writer.constant(scale)]
    return writer.node("GatherBlockQuantized", *read, bits=bits, block_size=_BLOCK, quantize_axis=1, **_DOMAIN)


def _quantized_product(writer: Writer, x: str, depth: int, units: int, bits: int) -> str:
    """Add a product with quantized weights, whose zero points are half of the range."""
    count, block_bytes = depth // _BLOCK * units, _BLOCK * bits // 8
    packed = (
        np.abs(writer.numbers(count * block_bytes, 1) * 100)
        .astype(np.uint8)
        .reshape(units, depth // _BLOCK, block_bytes)
    )
    scale = np.full((units, depth // _BLOCK), depth**-0.5 / (1 << bits), np.float32)
    return writer.node(
        "MatMulNBits",
        x,
        writer.constant(packed),
        writer.constant(scale),
        K=depth,
        N=units,
        bits=bits,
        block_size=_BLOCK,
        **_DOMAIN,
    )


def _sum_and_norm(writer: Writer, sizes: Sizes, x: str, more: str) -> tuple[str, str]:
    """Add a sum, and return it and its normalization."""
    scale, number = writer.constant(np.ones(sizes.width, np.float32)), len(writer.nodes)
    outputs = [f"normal_{number}", "", "", f"sum_{number}"]
    writer.nodes.append(
        helper.make_node(
            "SkipSimplifiedLayerNormalization", [x, more, scale], outputs, f"skip_{number}", epsilon=1e-5, **_DOMAIN
        )
    )
    return outputs[3], outputs[0]


def _group_query_interface(writer: Writer, sizes: Sizes, more: Sequence[str] = ()) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total"]),
        *(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in more),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", sizes.words])]
    for part in cache_names(sizes):
        cache = ["batch", sizes.kept_heads, "past", sizes.depth]
        inputs.append(helper.make_tensor_value_info(f"past.{part}", TensorProto.FLOAT, cache))
        cache[2] = "total"
        outputs.append(helper.make_tensor_value_info(f"present.{part}", TensorProto.FLOAT, cache))
    graph = helper.make_graph(writer.nodes, "group_query_model", inputs, outputs, writer.tensors)
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def step_feed(sizes: Sizes, length: int, past: int, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Return a feed of so many new tokens, with a cache of noise."""
    random = np.random.default_rng(seed)
    shape = (1, sizes.kept_heads, past, sizes.depth)
    caches = {f"past.{name}": random.standard_normal(shape).astype(np.float32) for name in cache_names(sizes)}
    ids = random.integers(0, sizes.words, (1, length))
    return {"ids": ids, "mask": np.ones((1, length + past), np.int64), **caches}
