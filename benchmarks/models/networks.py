"""Networks of the usual kinds, with seeded weights and fixed shapes, small enough to be timed often.

`networks()` has the twelve that policies were tuned with, `other_networks()` ten that nothing was tuned to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.language_models import Sizes, cache_names, language_model
from benchmarks.models.writer import Writer

_OPSET = 17
_GPT = Sizes(layers=4, width=256, words=2000)


def networks() -> Mapping[str, Callable[[], onnx.ModelProto]]:
    """Return the maker of each network, by name."""
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
    """Return an encoder: attention and a perceptron with GELU, each followed by a normalization."""
    writer, x = Writer(1), "x"
    split = writer.constant(np.array([1, rows, heads, width // heads]))
    shape_input = writer.constant(np.array([1, rows, width]))
    for _ in range(layers):
        query, key, value = (
            writer.node("Transpose", writer.node("Reshape", _dense(writer, x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scale = writer.constant(np.float32((width // heads) ** -0.5))
        scores = writer.node("Softmax", writer.node("Mul", writer.node("MatMul", query, key), scale), axis=-1)
        mixed = writer.node("Transpose", writer.node("MatMul", scores, value), perm=[0, 2, 1, 3])
        attended = _dense(writer, writer.node("Reshape", mixed, shape_input), width, width)
        x = writer.normalized(writer.node("Add", x, attended), width)
        wide = _dense(writer, x, width, 4 * width)
        gate = writer.node("Erf", writer.node("Div", wide, writer.constant(np.float32(2**0.5))))
        wide = writer.node("Mul", wide, writer.node("Add", gate, writer.constant(np.float32(1))))
        wide = writer.node("Mul", wide, writer.constant(np.float32(0.5)))
        x = writer.normalized(writer.node("Add", x, _dense(writer, wide, 4 * width, width)), width)
    return _model(writer, (1, rows, width), x, (1, rows, width))


def _perceptron(shape: tuple[int, int], widths: Sequence[int]) -> onnx.ModelProto:
    writer, x, width_in = Writer(2), "x", shape[1]
    for width in widths:
        x, width_in = writer.node("Relu", _dense(writer, x, width_in, width)), width
    return _model(writer, shape, x, (shape[0], width_in))


def _digits() -> onnx.ModelProto:
    writer = Writer(3)
    x = writer.node("MaxPool", _convolution(writer, "x", 1, 8, 5), kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("MaxPool", _convolution(writer, x, 8, 16, 5), kernel_shape=[2, 2], strides=[2, 2])
    x = _dense(writer, writer.node("Flatten", x), 16 * 7 * 7, 10)
    return _model(writer, (1, 1, 28, 28), writer.node("Softmax", x, axis=-1), (1, 10))


def _residual(widths: Sequence[int], blocks: int, side: int) -> onnx.ModelProto:
    writer, channels = Writer(4), 3
    x = "x"
    for width in widths:
        x, channels = _convolution(writer, x, channels, width, 3, stride=2), width
        for _ in range(blocks):
            branch = _convolution(writer, _convolution(writer, x, width, width, 3), width, width, 3, activation="")
            x = writer.node("Relu", writer.node("Add", x, branch))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, channels, 100), (1, 100))


def _plain(widths: Sequence[int], side: int) -> onnx.ModelProto:
    writer, channels, x = Writer(5), 3, "x"
    for width in widths:
        x = _convolution(writer, x, channels, width, 3)
        x, channels = _convolution(writer, x, width, width, 3), width
        x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, channels, 100), (1, 100))


def _mobile(widths: Sequence[int], blocks: int, side: int) -> onnx.ModelProto:
    """Return inverted residuals as in MobileNetV2: pointwise, depthwise and pointwise convolutions, clipped at 6."""
    writer, channels, x = Writer(6), 3, "x"
    for width in widths:
        x, channels = _convolution(writer, x, channels, width, 3, stride=2, activation="Clip"), width
        for _ in range(blocks):
            wide = _convolution(writer, x, width, 4 * width, 1, activation="Clip")
            wide = _convolution(writer, wide, 4 * width, 4 * width, 3, group=4 * width, activation="Clip")
            x = writer.node("Add", x, _convolution(writer, wide, 4 * width, width, 1, activation=""))
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return _model(writer, (1, 3, side, side), _dense(writer, x, channels, 100), (1, 100))


def _segmentation(widths: Sequence[int], side: int) -> onnx.ModelProto:
    """Return a network like U-Net, with skip connections."""
    writer, channels, x = Writer(7), 3, "x"
    skips: list[tuple[str, int]] = []
    for width in widths:
        x = _convolution(writer, _convolution(writer, x, channels, width, 3), width, width, 3)
        skips.append((x, width))
        x, channels = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width
    x = _convolution(writer, x, channels, channels, 3)
    for skip, width in reversed(skips):
        weight = writer.constant(writer.numbers(channels, width, 2, 2))
        x = writer.node("Concat", writer.node("ConvTranspose", x, weight, strides=[2, 2]), skip, axis=1)
        x, channels = _convolution(writer, x, 2 * width, width, 3), width
    x = _convolution(writer, x, channels, 1, 1, activation="Sigmoid")
    return _model(writer, (1, 3, side, side), x, (1, 1, side, side))


def _recurrent(layers: int, width: int, steps: int) -> onnx.ModelProto:
    writer, x = Writer(8), "x"
    for _ in range(layers):
        weights = [writer.constant(writer.numbers(1, 4 * width, width)) for _ in range(2)]
        x = writer.node("Squeeze", writer.node("LSTM", x, *weights, hidden_size=width), writer.constant([1]))
    return _model(writer, (steps, 1, width), _dense(writer, x, width, 20), (steps, 1, 20))


def _convolution(
    writer: Writer, x: str, channels: int, width: int, kernel: int, *, stride: int = 1, group: int = 1,
    activation: str = "Relu",
) -> str:  # fmt: skip
    weight = writer.constant(writer.numbers(width, channels // group, kernel, kernel))
    bias = writer.constant(np.zeros(width, np.float32))
    edges = [kernel // 2] * 4
    x = writer.node("Conv", x, weight, bias, pads=edges, strides=[stride, stride], group=group)
    limits = [writer.constant(np.float32(value)) for value in (0, 6)] if activation == "Clip" else []
    return writer.node(activation, x, *limits) if activation else x


_Shape = tuple[int, ...]


def other_networks() -> Mapping[str, Callable[[], onnx.ModelProto]]:
    """Return the maker of each network, by name."""
    return {
        "bottlenecks": lambda: _bottlenecks((24, 48), 3, 56),
        "dense blocks": lambda: _dense_blocks(12, 5, 40),
        "fire modules": lambda: _fire((16, 24, 32), 72),
        "patches": lambda: _patches(64, 8, 160, 3),
        "mixer": lambda: _mixer(49, 192, 3),
        "gates": lambda: _gates(24, 192, 3),
        "one-dimensional": lambda: _one_dimensional((32, 48, 64), 400),
        "separable": lambda: _separable((24, 40, 72), 80),
        "wide perceptron": lambda: _wide_perceptron(16, 1536, 3),
        "features by hand": lambda: _by_hand(48, 300),
    }


def _number(writer: Writer, value: float) -> str:
    return writer.constant(np.float32(value))


def _conv(writer: Writer, x: str, sizes: _Shape, act: str = "Relu", stride: int = 1, group: int = 1) -> str:
    """Add a convolution with weights [channels out, channels in per group, kernel...], and its activation."""
    kernel = sizes[2:]
    pads = [size // 2 for size in kernel] * 2
    weight, bias = writer.constant(writer.numbers(*sizes)), writer.constant(np.zeros(sizes[0], np.float32))
    x = writer.node("Conv", x, weight, bias, pads=pads, strides=[stride] * len(kernel), group=group)
    if act == "HardSwish":
        return writer.node("HardSwish", x)
    if act == "Swish":
        return writer.node("Mul", x, writer.node("Sigmoid", x))
    return writer.node(act, x) if act else x


def _normalized(writer: Writer, x: str, width: int) -> str:
    scale, bias = (writer.constant(np.full(width, value, np.float32)) for value in (1, 0))
    return writer.node("LayerNormalization", x, scale, bias, axis=-1)


def _head(writer: Writer, x: str, width: int) -> str:
    return _dense(writer, writer.node("Flatten", writer.node("GlobalAveragePool", x)), width, 50)


def _bottlenecks(widths: Sequence[int], blocks: int, side: int) -> onnx.ModelProto:
    """Return bottleneck blocks as in ResNet-50."""
    writer, channels = Writer(11), 3
    x = "x"
    for width in widths:
        x, channels = _conv(writer, x, (4 * width, channels, 3, 3), stride=2), 4 * width
        for _ in range(blocks):
            branch = _conv(writer, x, (width, channels, 1, 1))
            branch = _conv(writer, branch, (width, width, 3, 3))
            branch = _conv(writer, branch, (channels, width, 1, 1), act="")
            x = writer.node("Relu", writer.node("Add", branch, x))
    return _model(writer, (1, 3, side, side), _head(writer, x, channels))


def _dense_blocks(growth: int, layers: int, side: int) -> onnx.ModelProto:
    """Return dense blocks as in DenseNet."""
    writer, channels = Writer(12), 24
    x = _conv(writer, "x", (channels, 3, 3, 3))
    for _ in range(2):
        for _ in range(layers):
            numbers = [writer.constant(np.full(channels, value, np.float32)) for value in (1, 0, 0.1, 1)]
            result = writer.node("Relu", writer.node("BatchNormalization", x, *numbers))
            result = _conv(writer, result, (growth, channels, 3, 3), act="")
            x, channels = writer.node("Concat", x, result, axis=1), channels + growth
        x, channels = _conv(writer, x, (channels // 2, channels, 1, 1)), channels // 2
        x = writer.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return _model(writer, (1, 3, side, side), _head(writer, x, channels))


def _fire(widths: Sequence[int], side: int) -> onnx.ModelProto:
    """Return fire modules as in SqueezeNet."""
    writer, channels = Writer(13), 32
    x = _conv(writer, "x", (channels, 3, 3, 3), stride=2)
    for width in widths:
        narrow = _conv(writer, x, (width, channels, 1, 1))
        first_half, second_half = (_conv(writer, narrow, (4 * width, width, size, size)) for size in (1, 3))
        x, channels = writer.node("Concat", first_half, second_half, axis=1), 8 * width
        x = writer.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
    return _model(writer, (1, 3, side, side), _head(writer, x, channels))


def _patches(side: int, patch: int, width: int, layers: int, heads: int = 5) -> onnx.ModelProto:
    """Return a network like ViT: pre-normalized, with one product for all of attention's inputs and GELU by tanh."""
    writer, rows, size = Writer(14), (side // patch) ** 2, width // heads
    weight = writer.constant(writer.numbers(width, 3, patch, patch))
    x = writer.node("Conv", "x", weight, strides=[patch, patch])
    x = writer.node("Reshape", x, writer.constant(np.array([width, rows])))
    x = writer.node("Transpose", x, perm=[1, 0])
    x = writer.node("Add", x, writer.constant(writer.numbers(rows, width)))
    for _ in range(layers):
        all_three = _dense(writer, _normalized(writer, x, width), width, 3 * width)
        all_three = writer.node("Reshape", all_three, writer.constant(np.array([rows, 3, heads, size])))
        all_three = writer.node("Transpose", all_three, perm=[1, 2, 0, 3])
        query, key, value = (
            writer.node("Gather", all_three, writer.constant(np.array(position)), axis=0) for position in range(3)
        )
        scores = writer.node("MatMul", query, writer.node("Transpose", key, perm=[0, 2, 1]))
        scores = writer.node("Softmax", writer.node("Mul", scores, _number(writer, size**-0.5)), axis=-1)
        mixed = writer.node("Transpose", writer.node("MatMul", scores, value), perm=[1, 0, 2])
        mixed = writer.node("Reshape", mixed, writer.constant(np.array([rows, width])))
        x = writer.node("Add", x, _dense(writer, mixed, width, width))
        wide = _dense(writer, _normalized(writer, x, width), width, 4 * width)
        x = writer.node("Add", x, _dense(writer, _gelu_by_tanh(writer, wide), 4 * width, width))
    x = writer.node("ReduceMean", _normalized(writer, x, width), axes=[0], keepdims=1)
    return _model(writer, (1, 3, side, side), _dense(writer, x, width, 50))


def _gelu_by_tanh(writer: Writer, x: str) -> str:
    cube = writer.node("Mul", writer.node("Mul", x, x), x)
    inner = writer.node("Add", x, writer.node("Mul", cube, _number(writer, 0.044715)))
    gate = writer.node("Tanh", writer.node("Mul", inner, _number(writer, 0.7978846)))
    half = writer.node("Mul", x, _number(writer, 0.5))
    return writer.node("Mul", half, writer.node("Add", gate, _number(writer, 1.0)))


def _mixer(rows: int, width: int, layers: int) -> onnx.ModelProto:
    """Return an MLP mixer."""
    writer, x = Writer(15), "x"
    for _ in range(layers):
        turned = writer.node("Transpose", _normalized(writer, x, width), perm=[0, 2, 1])
        turned = _dense(writer, writer.node("Relu", _dense(writer, turned, rows, 2 * rows)), 2 * rows, rows)
        x = writer.node("Add", x, writer.node("Transpose", turned, perm=[0, 2, 1]))
        wide = writer.node("Relu", _dense(writer, _normalized(writer, x, width), width, 2 * width))
        x = writer.node("Add", x, _dense(writer, wide, 2 * width, width))
    return _model(writer, (1, rows, width), x)


def _gates(steps: int, width: int, layers: int) -> onnx.ModelProto:
    """Return layers of bidirectional GRUs."""
    writer, x, width_in = Writer(16), "x", width
    for _ in range(layers):
        weights = [writer.constant(writer.numbers(2, 3 * width, columns)) for columns in (width_in, width)]
        result = writer.node("GRU", x, *weights, hidden_size=width, direction="bidirectional", linear_before_reset=1)
        result = writer.node("Transpose", result, perm=[0, 2, 1, 3])
        x = writer.node("Reshape", result, writer.constant(np.array([steps, 1, 2 * width])))
        width_in = 2 * width
    return _model(writer, (steps, 1, width), _dense(writer, x, width_in, 30))


def _one_dimensional(widths: Sequence[int], length: int) -> onnx.ModelProto:
    """Return one-dimensional convolutions with wide kernels."""
    writer, x, channels = Writer(17), "x", 16
    for width in widths:
        x, channels = _conv(writer, x, (width, channels, 9), act="Swish"), width
        x = writer.node("MaxPool", x, kernel_shape=[2], strides=[2])
    return _model(writer, (1, 16, length), _head(writer, x, channels))


def _separable(widths: Sequence[int], side: int) -> onnx.ModelProto:
    """Return separable convolutions with squeeze and excitation and HardSwish, as in MobileNetV3."""
    writer, channels = Writer(18), 16
    x = _conv(writer, "x", (channels, 3, 3, 3), act="HardSwish", stride=2)
    for width in widths:
        for stride in (2, 1):
            x = _conv(writer, x, (channels, 1, 5, 5), act="HardSwish", stride=stride, group=channels)
            squeezed = _conv(writer, writer.node("GlobalAveragePool", x), (channels // 4, channels, 1, 1))
            weights = writer.node("HardSigmoid", _conv(writer, squeezed, (channels, channels // 4, 1, 1), act=""))
            x = _conv(writer, writer.node("Mul", x, weights), (width, channels, 1, 1), act="HardSwish")
            channels = width
    return _model(writer, (1, 3, side, side), _head(writer, x, channels))


def _wide_perceptron(rows: int, width: int, layers: int) -> onnx.ModelProto:
    """Return residual gated perceptrons."""
    writer, x = Writer(19), "x"
    for _ in range(layers):
        first_half, second_half = (_dense(writer, x, width, width // 2, bias=False) for _ in range(2))
        gated = writer.node("Mul", writer.node("Mul", first_half, writer.node("Sigmoid", first_half)), second_half)
        x = writer.node("Add", x, _dense(writer, gated, width // 2, width, bias=False))
    return _model(writer, (rows, width), x)


def _by_hand(rows: int, width: int) -> onnx.ModelProto:
    """Return features as of tables: means, quotients, logarithms and maxima, without large products."""
    writer, x = Writer(20), "x"
    parts = []
    for _ in range(4):
        mean = writer.node("ReduceMean", x, axes=[1], keepdims=1)
        away = writer.node("Sub", x, mean)
        spread = writer.node("Sqrt", writer.node("ReduceMean", writer.node("Mul", away, away), axes=[1], keepdims=1))
        x = writer.node("Div", away, writer.node("Add", spread, _number(writer, 1e-3)))
        size = writer.node("Log", writer.node("Add", writer.node("Abs", x), _number(writer, 1.0)))
        x = writer.node("Mul", size, writer.node("Sign", x))
        parts.append(writer.node("ReduceMax", x, axes=[1], keepdims=1))
    x = writer.node("Concat", *parts, axis=1)
    return _model(writer, (rows, width), _dense(writer, x, 4, 8))


def _model(
    writer: Writer, shape: Sequence[int], x: str, output_shape: Sequence[int | str] | None = None
) -> onnx.ModelProto:
    writer.node("Identity", x, output="y")
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    target = helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape)
    graph = helper.make_graph(writer.nodes, "network", [source], [target], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _dense(writer: Writer, x: str, width_in: int, width: int, bias: bool = True) -> str:
    product = writer.node("MatMul", x, writer.weight(width_in, width))
    return writer.node("Add", product, writer.constant(np.zeros(width, np.float32))) if bias else product
