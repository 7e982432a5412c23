"""A small language model as exporters for ONNX Runtime's generative loop write one: fused ops and a growing cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.language_model import Sizes, Writer, cache_names

_OPSET = 17
_TURNS = 10_000.0
"""The longest wave of positions."""
_DOMAIN = {"domain": "com.microsoft"}
_BLOCK = 32
"""Weights of few bits that share a scale."""


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
            return _few_bits(writer, x, depth, units, bits)
        return writer.node("MatMul", x, writer.weight(depth, units))

    lengths, total = _counted(writer)
    tables = _tables(writer, sizes)
    words = _few_bits_of_words(writer, sizes, bits) if bits else writer.weight(sizes.words, sizes.width)
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
        seen = f"seen_{layer}"
        writer.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*parts, *cache, lengths, total, *read],
                [seen, f"present.{layer}.key", f"present.{layer}.value"],
                f"attention_{layer}",
                num_heads=sizes.heads,
                kv_num_heads=sizes.kept_heads,
                do_rotary=int(bool(read)),
                local_window_size=window,
                **_DOMAIN,
            )
        )
        x, normal = _added(writer, sizes, x, product(seen, sizes.width, sizes.width))
        gate, up = (product(normal, sizes.width, 2 * sizes.width) for _ in range(2))
        gated = writer.node("Mul", writer.node("Mul", gate, writer.node("Sigmoid", gate)), up)
        x, normal = _added(writer, sizes, x, product(gated, 2 * sizes.width, sizes.width))
    writer.node("MatMul", normal, writer.weight(sizes.width, sizes.words), output="logits")
    return _model(writer, sizes, ["places"] if places else [])


def _counted(writer: Writer) -> tuple[str, str]:
    """The last position of every text, and how many the longest has."""
    counted = writer.node("ReduceSum", "mask", writer.constant([1]), keepdims=0)
    lengths = writer.node("Sub", counted, writer.constant(np.int64(1)))
    total = writer.node("Gather", writer.node("Shape", "mask"), writer.constant(np.int64(1)), axis=0)
    return writer.node("Cast", lengths, to=TensorProto.INT32), writer.node("Cast", total, to=TensorProto.INT32)


def _tables(writer: Writer, sizes: Sizes) -> list[str]:
    """Cosines and sines of every position."""
    speeds = _TURNS ** -(np.arange(0, sizes.depth, 2) / sizes.depth)
    angles = np.arange(sizes.positions)[:, None] * speeds
    return [writer.constant(each.astype(np.float32)) for each in (np.cos(angles), np.sin(angles))]


def _few_bits_of_words(writer: Writer, sizes: Sizes, bits: int) -> str:
    """The words that are looked up in a table of few bits."""
    blocks = sizes.width // _BLOCK
    table = np.abs(writer.numbers(sizes.words, sizes.width * bits // 8) * 1000).astype(np.uint8)
    scale = np.full((sizes.words, blocks), 1 / (1 << bits), np.float32)
    read = [writer.constant(table), "ids", writer.constant(scale)]
    return writer.node("GatherBlockQuantized", *read, bits=bits, block_size=_BLOCK, quantize_axis=1, **_DOMAIN)


def _few_bits(writer: Writer, x: str, depth: int, units: int, bits: int) -> str:
    """A product with weights of few bits; zero points are half of what these say."""
    count, each = depth // _BLOCK * units, _BLOCK * bits // 8
    packed = np.abs(writer.numbers(count * each, 1) * 100).astype(np.uint8).reshape(units, depth // _BLOCK, each)
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


def _added(writer: Writer, sizes: Sizes, x: str, more: str) -> tuple[str, str]:
    """The sum, and the sum normalized."""
    scale, number = writer.constant(np.ones(sizes.width, np.float32)), len(writer.nodes)
    outputs = [f"normal_{number}", "", "", f"sum_{number}"]
    writer.nodes.append(
        helper.make_node(
            "SkipSimplifiedLayerNormalization", [x, more, scale], outputs, f"skip_{number}", epsilon=1e-5, **_DOMAIN
        )
    )
    return outputs[3], outputs[0]


def _model(writer: Writer, sizes: Sizes, more: Sequence[str] = ()) -> onnx.ModelProto:
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
    """A feed of so many new tokens, with a cache of noise."""
    random = np.random.default_rng(seed)
    shape = (1, sizes.kept_heads, past, sizes.depth)
    caches = {f"past.{name}": random.standard_normal(shape).astype(np.float32) for name in cache_names(sizes)}
    ids = random.integers(0, sizes.words, (1, length))
    return {"ids": ids, "mask": np.ones((1, length + past), np.int64), **caches}
