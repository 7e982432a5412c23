"""An encoder of the form of BERT with its embeddings, in ops that ONNX Runtime's tools for transformers fuse it to."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from benchmarks.language_model import Writer

_OPSET = 17
_DOMAIN = "com.microsoft"


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
    given = ("ids", "kinds", *tables, _scale(writer, width, 1), _scale(writer, width, 0), "mask")
    writer.nodes.append(
        helper.make_node("EmbedLayerNormalization", given, ["embedded", "lengths"], "embeddings", domain=_DOMAIN)
    )
    x = "embedded"
    for _ in range(layers):
        parts = (x, writer.weight(width, 3 * width), _scale(writer, 3 * width, 0), "lengths")
        mixed = writer.node("Attention", *parts, num_heads=heads, domain=_DOMAIN)
        x = _normalized(writer, _product(writer, mixed, width, width), x, width)
        inner = writer.node(
            "BiasGelu", _product(writer, x, width, 4 * width), _scale(writer, 4 * width, 0), domain=_DOMAIN
        )
        x = _normalized(writer, _product(writer, inner, 4 * width, width), x, width)
    writer.node("Identity", x, output="y")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [1, length]) for name in ("ids", "kinds", "mask")]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, length, width])
    graph = helper.make_graph(writer.nodes, "encoder", inputs, [made], writer.tensors)
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _scale(writer: Writer, width: int, value: float) -> str:
    return writer.constant(writer.numbers(width) / 10 + value)


def _product(writer: Writer, x: str, before: int, behind: int) -> str:
    return writer.node("MatMul", x, writer.weight(before, behind))


def _normalized(writer: Writer, x: str, skip: str, width: int) -> str:
    parts = (x, skip, _scale(writer, width, 1), _scale(writer, width, 0), _scale(writer, width, 0))
    return writer.node("SkipLayerNormalization", *parts, domain=_DOMAIN)
