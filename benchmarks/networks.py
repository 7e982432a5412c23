"""Twelve networks of the usual kinds, with seeded weights and fixed sizes, small enough to be timed often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.language_model import Sizes, Writer, cache_names, language_model

_OPSET = 17
_GPT = Sizes(layers=4, width=256, words=2000)


def networks() -> Mapping[str, Callable[[], onnx.ModelProto]]:
    """Return what makes each network, by name."""
    return {
        "language model, a step": lambda: _language_model(1, 64),
        "language model, a prompt": lambda: _language_model(48, 16),
        "encoder 2x128": lambda: encoder(2, 128, 32),
        "encoder 4x256": lambda: encoder(4, 256, 96),
        "perceptron, one row": lambda: _perceptron((1, 784), (256, 256, 10)),
        "perceptron, 64 rows": lambda: _perceptron((64, 1024), (1024, 1024, 256)),
        "digits": _digits,
        "residual": lambda: _residual((16, 32, 64), 2, 96),
        "plain 3x3": lambda: _plain((32, 64, 64), 64),
        "mobile": lambda: _mobile((16, 32, 64, 96), 2, 96),
        "segmentation": lambda: _segmentation((16, 32, 64), 64),
        "recurrent": lambda: _recurrent(2, 128, 24),
    }


def _model(writer: Writer, shape: Sequence[int], x: str, shape_out: Sequence[int | str]) -> onnx.ModelProto:
    writer.node("Identity", x, output="y")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape_out)
    graph = helper.make_graph(writer.nodes, "network", [given], [made], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _language_model(length: int, past: int) -> onnx.ModelProto:
    model = language_model(_GPT)
    sizes = {"batch": 1, "length": length, "past": past, "total": past + length}
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_value = sizes[dimension.dim_param]
    assert len(model.graph.input) == 1 + len(list(cache_names(_GPT)))
    return model


def encoder(layers: int, width: int, rows: int, heads: int = 4) -> onnx.ModelProto:
    """Attention to everything, and two products with a GELU between, after the sums normalized."""
    writer, x = Writer(1), "x"
    split = writer.constant(np.array([1, rows, heads, width // heads]))
    whole = writer.constant(np.array([1, rows, width]))
    for _ in range(layers):
        query, key, value = (
            writer.node("Transpose", writer.node("Reshape", _dense(writer, x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scale = writer.constant(np.float32((width // heads) ** -0.5))
        scores = writer.node("Softmax", writer.node("Mul", writer.node("MatMul", query, key), scale), axis=-1)
        mixed = writer.node("Transpose", writer.node("MatMul", scores, value), perm=[0, 2, 1, 3])
        attended = _dense(writer, writer.node("Reshape", mixed, whole), width, width)
        x = writer.normalized(writer.node("Add", x, attended), width)
        wide = _dense(writer, x, width, 4 * width)
        gate = writer.node("Erf", writer.node("Div", wide, writer.constant(np.float32(2**0.5))))
        wide = writer.node("Mul", wide, writer.node("Add", gate, writer.constant(np.float32(1))))
        wide = writer.node("Mul", wide, writer.constant(np.float32(0.5)))
        x = writer.normalized(writer.node("Add", x, _dense(writer, wide, 4 * width, width)), width)
    return _model(writer, (1, rows, width), x, (1, rows, width))


def _perceptron(shape: tuple[int, int], widths: Sequence[int]) -> onnx.ModelProto:
    writer, x, before = Writer(2), "x", shape[1]
    for width in widths:
        x, before = writer.node("Relu", _dense(writer, x, before, width)), width
    return _model(writer, shape, x, (shape[0], before))


def _digits() -> onnx.ModelProto:
    writer = Writer(3)
    x = writer.node("MaxPool", _convolution(writer, "x", 1, 8, 5), kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("MaxPool", _convolution(writer, x, 8, 16, 5), kernel_shape=[2, 2], strides=[2, 2])
    x = _dense(writer, writer.node("Flatten", x), 16 * 7 * 7, 10)
    return _model(writer, (1, 1, 28, 28), writer.node("Softmax", x, axis=-1), (1, 10))


def _residual(widths: Sequence[int], blocks: int, side: int) -> onnx.ModelProto:
    writer, before = Writer(4), 3
    x = "x"
    for width in widths:
        x, before = _convolution(writer, x, before, width, 3, stride=2), width
        for _ in range(blocks):
            branch = _convolution(writer, _convolution(writer, x, width, width, 3), width, width, 3, activation="")
            x = writer.node("Relu", writer.node("Add", x, branch))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, before, 100), (1, 100))


def _plain(widths: Sequence[int], side: int) -> onnx.ModelProto:
    writer, before, x = Writer(5), 3, "x"
    for width in widths:
        x = _convolution(writer, x, before, width, 3)
        x, before = _convolution(writer, x, width, width, 3), width
        x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, before, 100), (1, 100))


def _mobile(widths: Sequence[int], blocks: int, side: int) -> onnx.ModelProto:
    """Inverted residuals: wide by points, 3 x 3 by itself per channel, narrow again, clipped at 6."""
    writer, before, x = Writer(6), 3, "x"
    for width in widths:
        x, before = _convolution(writer, x, before, width, 3, stride=2, activation="Clip"), width
        for _ in range(blocks):
            wide = _convolution(writer, x, width, 4 * width, 1, activation="Clip")
            wide = _convolution(writer, wide, 4 * width, 4 * width, 3, group=4 * width, activation="Clip")
            x = writer.node("Add", x, _convolution(writer, wide, 4 * width, width, 1, activation=""))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, before, 100), (1, 100))


def _segmentation(widths: Sequence[int], side: int) -> onnx.ModelProto:
    """Down and up again, with what was there on the way down beside it."""
    writer, before, x = Writer(7), 3, "x"
    kept: list[tuple[str, int]] = []
    for width in widths:
        x = _convolution(writer, _convolution(writer, x, before, width, 3), width, width, 3)
        kept.append((x, width))
        x, before = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width
    x = _convolution(writer, x, before, before, 3)
    for beside, width in reversed(kept):
        weight = writer.constant(writer.numbers(before, width, 2, 2))
        x = writer.node("Concat", writer.node("ConvTranspose", x, weight, strides=[2, 2]), beside, axis=1)
        x, before = _convolution(writer, x, 2 * width, width, 3), width
    x = _convolution(writer, x, before, 1, 1, activation="Sigmoid")
    return _model(writer, (1, 3, side, side), x, (1, 1, side, side))


def _recurrent(layers: int, width: int, steps: int) -> onnx.ModelProto:
    writer, x = Writer(8), "x"
    for _ in range(layers):
        weights = [writer.constant(writer.numbers(1, 4 * width, width)) for _ in range(2)]
        x = writer.node("Squeeze", writer.node("LSTM", x, *weights, hidden_size=width), writer.constant([1]))
    return _model(writer, (steps, 1, width), _dense(writer, x, width, 20), (steps, 1, 20))


def _dense(writer: Writer, x: str, before: int, width: int) -> str:
    product = writer.node("MatMul", x, writer.weight(before, width))
    return writer.node("Add", product, writer.constant(np.zeros(width, np.float32)))


def _convolution(
    writer: Writer, x: str, before: int, width: int, kernel: int, *, stride: int = 1, group: int = 1,
    activation: str = "Relu",
) -> str:  # fmt: skip
    weight = writer.constant(writer.numbers(width, before // group, kernel, kernel))
    bias = writer.constant(np.zeros(width, np.float32))
    edges = [kernel // 2] * 4
    x = writer.node("Conv", x, weight, bias, pads=edges, strides=[stride, stride], group=group)
    limits = [writer.constant(np.float32(value)) for value in (0, 6)] if activation == "Clip" else []
    return writer.node(activation, x, *limits) if activation else x
