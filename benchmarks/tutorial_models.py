"""The two networks of docs/tutorial.md with seeded weights: ResNet-50, and BERT as published.

python benchmarks/tutorial_models.py FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.language_model import Sizes, Writer
from benchmarks.quantized_models import resnet

_BERT = Sizes(layers=12, width=768, heads=12, words=30_522, positions=512)
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(resnet([3, 4, 6, 3], is_deep=True), folder / "resnet50.onnx")
    onnx.save(bert(), folder / "bert.onnx")


def bert(sizes: Sizes = _BERT, length: int = 128) -> onnx.ModelProto:
    """Return a model of the form of BERT for one row of tokens.

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


def _linear(writer: Writer, x: str, before: int, behind: int) -> str:
    product = writer.node("MatMul", x, writer.weight(before, behind))
    return writer.node("Add", product, writer.constant(np.zeros(behind, np.float32)))


if __name__ == "__main__":
    main()
