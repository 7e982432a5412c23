"""Encoders like BERT: with fixed shapes, with dynamic shapes, and with the fused ops of ONNX Runtime's tools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.language_models import Sizes
from benchmarks.models.writer import Writer

_BERT = Sizes(layers=12, width=768, heads=12, words=30_522, positions=512)
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def bert(sizes: Sizes = _BERT, length: int = 128) -> onnx.ModelProto:
    """Return a model like BERT for one row of tokens, with static shapes.

    Args:
        sizes: as published, if not given.
        length: tokens of the row.

    Returns:
        A model with inputs `input_ids`, `attention_mask` and `token_type_ids` [1, length] and outputs
        `last_hidden_state` [1, length, width] and `pooler_output` [1, width].
    """
    writer = Writer(7)
    parts = [
        writer.node("Gather", writer.weight(sizes.words, sizes.width), "input_ids"),
        writer.node("Gather", writer.weight(2, sizes.width), "token_type_ids"),
        writer.node("Gather", writer.weight(sizes.positions, sizes.width), writer.constant(np.arange(length)[None])),
    ]
    x = writer.node("Add", writer.node("Add", parts[0], parts[1]), parts[2])
    x = writer.normalized(x, sizes.width)
    mask = writer.node("Unsqueeze", "attention_mask", writer.constant([1, 2]))
    hidden = writer.node("Sub", writer.constant(np.float32(1)), writer.node("Cast", mask, to=TensorProto.FLOAT))
    mask = writer.node("Mul", hidden, writer.constant(np.finfo(np.float32).min))
    for _ in range(sizes.layers):
        x = _layer(writer, x, mask, sizes, length)
    writer.node("Identity", x, output="last_hidden_state")
    first = writer.node("Gather", x, writer.constant(np.int64(0)), axis=1)
    writer.node("Tanh", _linear(writer, first, sizes.width, sizes.width), output="pooler_output")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, length]) for name in _INPUTS]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [1, length, sizes.width]),
        helper.make_tensor_value_info("pooler_output", TensorProto.FLOAT, [1, sizes.width]),
    ]
    graph = helper.make_graph(writer.nodes, "bert", inputs, outputs, writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _layer(writer: Writer, x: str, mask: str, sizes: Sizes, length: int) -> str:
    width, depth = sizes.width, sizes.depth
    split = writer.constant([1, length, sizes.heads, depth])
    query, key, value = (
        writer.node("Transpose", writer.node("Reshape", _linear(writer, x, width, width), split), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = writer.node("Div", writer.node("MatMul", query, key), writer.constant(np.float32(depth**0.5)))
    shares = writer.node("Softmax", writer.node("Add", scores, mask), axis=-1)
    mixed = writer.node("Transpose", writer.node("MatMul", shares, value), perm=[0, 2, 1, 3])
    joined = writer.node("Reshape", mixed, writer.constant([1, length, width]))
    x = writer.normalized(writer.node("Add", _linear(writer, joined, width, width), x), width)
    wide = _linear(writer, x, width, 4 * width)
    gate = writer.node("Erf", writer.node("Div", wide, writer.constant(np.float32(2**0.5))))
    gated = writer.node("Mul", wide, writer.node("Add", gate, writer.constant(np.float32(1))))
    gated = writer.node("Mul", gated, writer.constant(np.float32(0.5)))
    return writer.normalized(writer.node("Add", _linear(writer, gated, 4 * width, width), x), width)


def _linear(writer: Writer, x: str, columns_in: int, columns_out: int) -> str:
    product = writer.node("MatMul", x, writer.weight(columns_in, columns_out))
    return writer.node("Add", product, writer.constant(np.zeros(columns_out, np.float32)))


def encoder_model(layers: int = 12, width: int = 64, heads: int = 2, words: int = 100) -> onnx.ModelProto:
    """Return a model like BERT with dynamic shapes: inputs `ids` and `mask` [batch, length], output `y`."""
    writer = Writer(0)
    batch, length = writer.size("ids", 0), writer.size("ids", 1)
    places = writer.node("Range", writer.constant(np.int64(0)), length, writer.constant(np.int64(1)))
    embedded = writer.node("Gather", writer.weight(words, width), "ids")
    x = writer.node("Add", embedded, writer.node("Gather", writer.weight(512, width), places))
    wide = writer.node("Unsqueeze", writer.node("Cast", "mask", to=TensorProto.FLOAT), writer.constant([1, 2]))
    hidden = writer.node("Sub", writer.constant(np.float32(1)), wide)
    mask = writer.node("Mul", hidden, writer.constant(np.float32(-1e9)))
    for _ in range(layers):
        x = _encoder_block(writer, x, mask, (batch, length), width, heads)
    writer.node("Identity", x, output="y")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", width])]
    graph = helper.make_graph(writer.nodes, "encoder", inputs, outputs, writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _encoder_block(writer: Writer, x: str, mask: str, rows: Sequence[str], width: int, heads: int) -> str:
    depth = width // heads
    query, key, value = (
        writer.node(
            "Transpose",
            writer.node(
                "Reshape", writer.node("MatMul", x, writer.weight(width, width)), writer.shape(*rows, heads, depth)
            ),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    scores = writer.node("MatMul", query, writer.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = writer.node("Div", scores, writer.constant(np.float32(depth**0.5)))
    mixed = writer.node("MatMul", writer.node("Softmax", writer.node("Add", scaled, mask), axis=-1), value)
    joined = writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), writer.shape(*rows, width))
    x = writer.normalized(writer.node("Add", x, writer.node("MatMul", joined, writer.weight(width, width))), width)
    wide = writer.node("Relu", writer.node("MatMul", x, writer.weight(width, 4 * width)))
    return writer.normalized(writer.node("Add", x, writer.node("MatMul", wide, writer.weight(4 * width, width))), width)


_OPSET = 17
_MICROSOFT = "com.microsoft"


def fused_encoder(
    layers: int = 2, width: int = 256, heads: int = 4, length: int = 48, words: int = 1000
) -> onnx.ModelProto:
    """Return the encoder: `ids`, `kinds` and `mask`, [1, length] each, to `y` [1, length, width].

    Args:
        layers: how many.
        width: of a token.
        heads: of attention.
        length: of the text.
        words: token numbers are below this.
    """
    writer = Writer(seed=4)
    tables = [writer.weight(size, width) for size in (words, length, 2)]
    embedding_inputs = ("ids", "kinds", *tables, _scale(writer, width, 1), _scale(writer, width, 0), "mask")
    writer.nodes.append(
        helper.make_node(
            "EmbedLayerNormalization", embedding_inputs, ["embedded", "lengths"], "embeddings", domain=_MICROSOFT
        )
    )
    x = "embedded"
    for _ in range(layers):
        parts = (x, writer.weight(width, 3 * width), _scale(writer, 3 * width, 0), "lengths")
        mixed = writer.node("Attention", *parts, num_heads=heads, domain=_MICROSOFT)
        x = _skip_normalized(writer, _product(writer, mixed, width, width), x, width)
        inner = writer.node(
            "BiasGelu", _product(writer, x, width, 4 * width), _scale(writer, 4 * width, 0), domain=_MICROSOFT
        )
        x = _skip_normalized(writer, _product(writer, inner, 4 * width, width), x, width)
    writer.node("Identity", x, output="y")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [1, length]) for name in ("ids", "kinds", "mask")]
    output_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, length, width])
    graph = helper.make_graph(writer.nodes, "encoder", inputs, [output_info], writer.tensors)
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _scale(writer: Writer, width: int, value: float) -> str:
    return writer.constant(writer.numbers(width) / 10 + value)


def _product(writer: Writer, x: str, columns_in: int, columns_out: int) -> str:
    return writer.node("MatMul", x, writer.weight(columns_in, columns_out))


def _skip_normalized(writer: Writer, x: str, skip: str, width: int) -> str:
    parts = (x, skip, _scale(writer, width, 1), _scale(writer, width, 0), _scale(writer, width, 0))
    return writer.node("SkipLayerNormalization", *parts, domain=_MICROSOFT)
