"""Networks with seeded weights, and what ONNX Runtime's quantizers write of them.

Quantizers read and write files, so each model is written to a temporary folder and read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from benchmarks.models.encoders import fused_encoder
from benchmarks.models.networks import networks

_OPSET = 17
_BATCHES = 2
"""Seeded inputs for calibration."""
ACTIVATIONS = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}
"""Data types of quantized activations; weights are int8."""


class _Writer:
    """Nodes and seeded weights of a network, named by number."""

    def __init__(self, shape: Sequence[int], seed: int) -> None:
        self.shape = tuple(shape)
        self.channels = shape[1]
        """Channels of the last value."""
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output, and return its name."""
        name = f"{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant."""
        self._tensors.append(numpy_helper.from_array(np.asarray(value), f"constant_{len(self._tensors)}"))
        return self._tensors[-1].name

    def weight(self, *shape: int, fan: int) -> str:
        """Add weights that preserve the variance of `fan` inputs per output."""
        return self.constant((self._random.standard_normal(shape) * (2 / fan) ** 0.5).astype(np.float32))

    def bias(self, size: int) -> str:
        """Add small numbers around 0."""
        return self.constant((self._random.standard_normal(size) / 10).astype(np.float32))

    def convolution(self, x: str, channels: int, size: int, stride: int = 1, group: int = 1) -> str:
        """Add a convolution that pads by half of its window."""
        channels_in, self.channels = self.channels // group, channels
        weight = self.weight(channels, channels_in, size, size, fan=channels_in * size * size)
        pads, strides = [size // 2] * 4, [stride, stride]
        return self.node("Conv", x, weight, self.bias(channels), pads=pads, strides=strides, group=group)

    def linear(self, x: str, columns_in: int, columns_out: int) -> str:
        """Add a product with weights [before, behind], and a bias."""
        return self.node(
            "Add",
            self.node("MatMul", x, self.weight(columns_in, columns_out, fan=2 * columns_in)),
            self.bias(columns_out),
        )

    def classified(self, x: str) -> str:
        """Add a mean over each channel, and a linear layer."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        return self.node("Gemm", flat, self.weight(self.channels, 1000, fan=self.channels), self.bias(1000))

    def model(self, output: str) -> onnx.ModelProto:
        """Return the network from `x` to `output`."""
        input_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        output_info = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self._nodes, "network", [input_info], [output_info], self._tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)


def resnet(blocks: Sequence[int], *, is_deep: bool, size: int = 224) -> onnx.ModelProto:
    """Return a network like ResNet, with normalization folded into the weights.

    Args:
        blocks: how many for each of the four sizes of pictures: [2, 2, 2, 2] with 18 layers, [3, 4, 6, 3] with 50.
        is_deep: blocks of three convolutions with four times as many channels after them, instead of two.
        size: height and width of a picture.
    """
    network = _Writer((1, 3, size, size), seed=0)
    x = network.node("Relu", network.convolution("x", 64, 7, 2))
    x = network.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for level, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if level and not number else 1
            x = _residual(network, x, 64 << level, stride, is_deep=is_deep)
    return network.model(network.classified(x))


def _residual(network: _Writer, x: str, width: int, stride: int, *, is_deep: bool) -> str:
    channels_in, result = network.channels, width * (4 if is_deep else 1)
    layers = [(width, 1, 1), (width, 3, stride), (result, 1, 1)] if is_deep else [(width, 3, stride), (width, 3, 1)]
    inner = x
    for number, layer in enumerate(layers):
        inner = network.convolution(network.node("Relu", inner) if number else inner, *layer)
    if (channels_in, stride) != (result, 1):
        network.channels = channels_in
        x = network.convolution(x, result, 1, stride)
    return network.node("Relu", network.node("Add", inner, x))


def mobilenet(size: int = 224) -> onnx.ModelProto:
    """Return a network like MobileNetV2: depthwise convolutions, Clip, sums."""
    network = _Writer((1, 3, size, size), seed=1)
    bounds = [network.constant(np.float32(bound)) for bound in (0, 6)]

    def clipped(x: str) -> str:
        return network.node("Clip", x, *bounds)

    x = clipped(network.convolution("x", 32, 3, 2))
    layers = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for times, channels, count, first in layers:
        for number in range(count):
            channels_in, stride, inner = network.channels, 1 if number else first, x
            if times > 1:
                inner = clipped(network.convolution(inner, channels_in * times, 1))
            inner = clipped(network.convolution(inner, channels_in * times, 3, stride, group=channels_in * times))
            inner = network.convolution(inner, channels, 1)
            x = network.node("Add", x, inner) if (channels_in, stride) == (channels, 1) else inner
    return network.model(network.classified(clipped(network.convolution(x, 1280, 1))))


def transformer(layers: int = 4, width: int = 256, heads: int = 4, length: int = 64) -> onnx.ModelProto:
    """Return an encoder like BERT without embeddings: `x` [1, length, width]."""
    network, x = _Writer((1, length, width), seed=2), "x"
    for _ in range(layers):
        x = _normalized(network, network.node("Add", x, _attention(network, x, width, heads, length)), width)
        inner = network.linear(x, width, 4 * width)
        x = _normalized(network, network.node("Add", x, network.linear(_gelu(network, inner), 4 * width, width)), width)
    return network.model(x)


def _attention(network: _Writer, x: str, width: int, heads: int, length: int) -> str:
    split, joined = (
        network.constant(np.array(shape)) for shape in ([1, length, heads, width // heads], [1, length, width])
    )
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (
        network.node("Transpose", network.node("Reshape", network.linear(x, width, width), split), perm=order)
        for order in orders
    )
    scale = network.constant(np.float32((width // heads) ** 0.5))
    weights = network.node("Softmax", network.node("Div", network.node("MatMul", query, key), scale), axis=-1)
    mixed = network.node("Transpose", network.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return network.linear(network.node("Reshape", mixed, joined), width, width)


def _gelu(network: _Writer, x: str) -> str:
    root, unit, half = (network.constant(np.float32(value)) for value in (2**0.5, 1, 0.5))
    grown = network.node("Add", network.node("Erf", network.node("Div", x, root)), unit)
    return network.node("Mul", network.node("Mul", x, grown), half)


def _normalized(network: _Writer, x: str, width: int) -> str:
    scale, bias = (network.constant(np.full(width, value, np.float32)) for value in (1, 0))
    return network.node("LayerNormalization", x, scale, bias, axis=-1)


def activation_functions() -> onnx.ModelProto:
    """Return a small network of ops that the others lack: LeakyRelu, Sigmoid, Concat, AveragePool, Where, Softmax."""
    network = _Writer((1, 4, 16, 16), seed=3)
    x = network.node("LeakyRelu", network.convolution("x", 32, 3), alpha=0.1)
    x = network.node("Concat", x, network.node("Sigmoid", network.convolution(x, 32, 3)), axis=1)
    x = network.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    is_large = network.node("Greater", x, network.constant(np.float32(0.1)))
    x = network.node("Where", is_large, x, network.node("Mul", x, x))
    network.channels = 64
    return network.model(network.node("Softmax", network.classified(network.convolution(x, 64, 3)), axis=-1))


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), is_deep=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), is_deep=True),
    "mobilenet": mobilenet,
    "transformer": transformer,
}
"""Makers of networks to quantize."""


def quantized(model: onnx.ModelProto, activations: str = "int8", *, per_channel: bool = False) -> onnx.ModelProto:
    """Return a network in int8 weights and quantized activations, as ONNX Runtime's quantizer writes it."""
    with tempfile.TemporaryDirectory() as folder:
        source_path, quantized_path = (Path(folder) / name for name in ("network.onnx", "quantized.onnx"))
        onnx.save(model, source_path)
        quantize_static(
            source_path,
            quantized_path,
            _Batches(model),
            quant_format=QuantFormat.QDQ,
            activation_type=ACTIVATIONS[activations],
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
        return onnx.load(quantized_path)


_WORDS = 1000
"""Token numbers below this are drawn."""
_LARGEST = {"kinds": 2, "mask": 2}
"""Bounds of other inputs of integers."""
Network = Callable[[], onnx.ModelProto]
Quantizer = Callable[[onnx.ModelProto, Path], None]
"""A function that writes a quantized model to a path."""
Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A model as a tool wrote it."""

    name: str
    model: onnx.ModelProto
    before: onnx.ModelProto
    """The model with its weights in float32."""


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> Feeds:
    """Return seeded noise for the inputs of a model: reals around 0, and token numbers."""
    random = np.random.default_rng(seed)
    initializers = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value_info in model.graph.input:
        if value_info.name in initializers:
            continue
        type_ = value_info.type.tensor_type
        shape = [size.dim_value or 1 for size in type_.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
        is_real = dtype.kind == "f"
        drawn = (
            random.standard_normal(shape)
            if is_real
            else random.integers(0, _LARGEST.get(value_info.name, _WORDS), shape)
        )
        feeds[value_info.name] = drawn.astype(dtype)
    return feeds


def written(names: Sequence[str] = ()) -> Iterator[Written]:
    """Yield every model, or those with names that contain one of `names`: quantized, and optimized after that."""
    for name, (network, quantizer, level) in MODELS.items():
        if names and not any(part in name for part in names):
            continue
        original = network()
        quantized, optimized = quantize(original, quantizer, level)
        yield Written(name, quantized, original)
        yield Written(f"{name}, optimized", optimized, original)


def quantize(
    model: onnx.ModelProto, quantizer: Quantizer, level: str = "EXTENDED"
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model as a quantizer writes it, and the same optimized at a level."""
    with tempfile.TemporaryDirectory() as folder:
        quantized, optimized = (Path(folder) / name for name in ("quantized.onnx", "optimized.onnx"))
        quantizer(model, quantized)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(optimized)
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        onnxruntime.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])
        return onnx.load(quantized), onnx.load(optimized)


class _Batches(CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto) -> None:
        self._feeds = iter([feeds_of(model, seed) for seed in range(_BATCHES)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def _static(model: onnx.ModelProto, path: Path, form: QuantFormat, activations: QuantType, **options: Any) -> None:
    source = path.with_name("network.onnx")
    onnx.save(model, source)
    options = {"weight_type": QuantType.QInt8, **options}
    quantize_static(source, path, _Batches(model), quant_format=form, activation_type=activations, **options)


def dynamic(model: onnx.ModelProto, path: Path, **options: Any) -> None:
    """Quantize weights statically and activations dynamically."""
    source = path.with_name("network.onnx")
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, **options)


def few_bits(model: onnx.ModelProto, path: Path, **options: Any) -> None:
    """Quantize weights of products, and lookup tables, to few bits in blocks."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    quantizer = MatMulNBitsQuantizer(copy, **options)
    quantizer.process()
    onnx.save(quantizer.model.model, path)


_QDQ, _OPERATORS = QuantFormat.QDQ, QuantFormat.QOperator
static_qdq = partial(_static, form=_QDQ, activations=QuantType.QUInt8)
static_operators = partial(_static, form=_OPERATORS, activations=QuantType.QUInt8)
sixteen_bits = partial(_static, form=_QDQ, activations=QuantType.QUInt16)
sixteen_bits_contributed = partial(sixteen_bits, extra_options={"UseQDQContribOps": True})
_per_channel = partial(_static, form=_QDQ, activations=QuantType.QUInt8, per_channel=True)
_resnet: Network = partial(resnet, (2, 2, 2, 2), is_deep=False, size=96)
_mobilenet: Network = partial(mobilenet, 96)
_encoder: Network = partial(transformer, 2)
_generator: Network = networks()["language model, a prompt"]
_recurrent: Network = networks()["recurrent"]
_dynamic_of_fused = partial(dynamic, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})
_lookups = ("MatMul", "Gather")

MODELS: Mapping[str, tuple[Network, Quantizer, str]] = {
    "ResNet-18, static QDQ": (_resnet, static_qdq, "EXTENDED"),
    "ResNet-18, static QDQ per channel": (_resnet, _per_channel, "EXTENDED"),
    "ResNet-18, static QOperator": (_resnet, static_operators, "ALL"),
    "ResNet-18, dynamic": (_resnet, dynamic, "EXTENDED"),
    "MobileNet, static QDQ": (_mobilenet, static_qdq, "ALL"),
    "MobileNet, static QDQ of 16 bits": (_mobilenet, sixteen_bits, "EXTENDED"),
    "activations, static QDQ": (activation_functions, static_qdq, "EXTENDED"),
    "encoder, static QDQ": (_encoder, static_qdq, "EXTENDED"),
    "encoder, static QOperator": (_encoder, static_operators, "EXTENDED"),
    "encoder, static QDQ of 16 bits": (_encoder, sixteen_bits_contributed, "EXTENDED"),
    "encoder, dynamic": (_encoder, dynamic, "EXTENDED"),
    "fused encoder, dynamic": (fused_encoder, _dynamic_of_fused, "EXTENDED"),
    "fused encoder, 8 bits": (fused_encoder, partial(few_bits, bits=8, block_size=32), "EXTENDED"),
    "GPT, static QDQ": (_generator, static_qdq, "EXTENDED"),
    "GPT, dynamic": (_generator, dynamic, "EXTENDED"),
    "GPT, 4 bits": (_generator, partial(few_bits, block_size=32, op_types_to_quantize=_lookups), "EXTENDED"),
    "GPT, 4 bits symmetric": (_generator, partial(few_bits, block_size=128, is_symmetric=True), "EXTENDED"),
    "GPT, 4 bits QDQ": (_generator, partial(few_bits, block_size=32, quant_format=_QDQ), "EXTENDED"),
    "GPT, 8 bits": (_generator, partial(few_bits, bits=8, block_size=64), "EXTENDED"),
    "LSTM, dynamic": (_recurrent, dynamic, "EXTENDED"),
    "LSTM, static QDQ": (_recurrent, static_qdq, "EXTENDED"),
}
"""Name -> a network, its quantizer, and the level of optimization after that."""
