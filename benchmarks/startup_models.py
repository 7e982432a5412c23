"""Models whose start is measured: RapidOCR's, and others with seeded weights of 1 MB to 3 GiB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.language_models import Sizes, first_feed, language_model
from benchmarks.models.networks import encoder
from benchmarks.models.quantized_models import resnet
from benchmarks.models.writer import Writer

Feed = Mapping[str, np.ndarray]
_LANGUAGE_MODEL = Sizes(layers=20, width=1024, heads=16, words=24_000)
_LARGEST = Sizes(layers=40, width=1280, heads=16, words=8_000)
_PROMPT = (1, 2, 3, 4)


def detector() -> onnx.ModelProto:
    """Return a small network for speech: convolutions over 512 samples and an LSTM, 1 MB of weights."""
    writer, x, before = Writer(20), "x", 1
    for width, stride in ((64, 4), (128, 4), (64, 2), (128, 2)):
        weight, bias = writer.constant(writer.numbers(width, before, 3)), writer.constant(np.zeros(width, np.float32))
        x = writer.node("Relu", writer.node("Conv", x, weight, bias, pads=[1, 1], strides=[stride]))
        before = width
    x = writer.node("Transpose", x, perm=[2, 0, 1])
    weights = [writer.constant(writer.numbers(1, 4 * before, before)) for _ in range(2)]
    x = writer.node("ReduceMean", writer.node("LSTM", x, *weights, hidden_size=before), axes=[0, 1], keepdims=0)
    return _model(writer, writer.node("Sigmoid", x), [1, 1, 512], [1, before])


def squeezing() -> onnx.ModelProto:
    """Return a network of the form of SqueezeNet 1.1, 5 MB of weights."""
    writer = Writer(21)
    x, before = _convolution(writer, "x", 3, 64, 3, stride=2), 64
    for widths in ((16, 16), (32, 32), (48, 48, 64, 64)):
        x = writer.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
        for width in widths:
            narrow = _convolution(writer, x, before, width, 1)
            wide = [_convolution(writer, narrow, width, 4 * width, size) for size in (1, 3)]
            x, before = writer.node("Concat", *wide, axis=1), 8 * width
    x = writer.node("GlobalAveragePool", _convolution(writer, x, before, 1000, 1))
    return _model(writer, writer.node("Flatten", x), [1, 3, 224, 224], [1, 1000])


def densenet() -> onnx.ModelProto:
    """Return a network of the form of DenseNet-121: every layer reads all that came before it, 32 MB of weights."""
    writer = Writer(22)
    x, width = _convolution(writer, "x", 3, 64, 7, stride=2), 64
    x = writer.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for layers in (6, 12, 24, 16):
        if width > 64:
            width //= 2
            x = _convolution(writer, _normalized(writer, x, 2 * width), 2 * width, width, 1)
            x = writer.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        for _ in range(layers):
            narrow = _convolution(writer, _normalized(writer, x, width), width, 128, 1)
            new = _convolution(writer, _normalized(writer, narrow, 128), 128, 32, 3)
            x, width = writer.node("Concat", x, new, axis=1), width + 32
    x = writer.node("Flatten", writer.node("GlobalAveragePool", _normalized(writer, x, width)))
    product = writer.node("MatMul", x, writer.constant(writer.numbers(width, 1000)))
    return _model(writer, product, [1, 3, 224, 224], [1, 1000])


def _ocr(kind: str, *shape: int) -> tuple[Callable[[], onnx.ModelProto], Feed]:
    """What reads one of RapidOCR's models with a fixed input shape, and what is fed to it."""

    def read() -> onnx.ModelProto:
        found = find_spec("rapidocr")
        assert found is not None and found.origin is not None, "these models are those of the package rapidocr"
        (path,) = (Path(found.origin).parent / "models").glob(f"*_{kind}_*.onnx")
        model = onnx.load(path)
        for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
            dimension.dim_value = size
        return model

    return read, {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], Feed]] = {
    "cls": _ocr("cls", 1, 3, 48, 192),
    "rec": _ocr("rec", 1, 3, 48, 320),
    "det": _ocr("det", 1, 3, 480, 640),
    "densenet": (densenet, {"x": np.zeros((1, 3, 224, 224), np.float32)}),
    "detector": (detector, {"x": np.zeros((1, 1, 512), np.float32)}),
    "squeezing": (squeezing, {"x": np.zeros((1, 3, 224, 224), np.float32)}),
    "resnet50": (lambda: resnet([3, 4, 6, 3], is_deep=True), {"x": np.zeros((1, 3, 224, 224), np.float32)}),
    "bert": (lambda: encoder(11, 768, 128, 12), {"x": np.ones((1, 128, 768), np.float32)}),
    "language": (lambda: language_model(_LANGUAGE_MODEL), first_feed(_LANGUAGE_MODEL, _PROMPT)),
    "largest": (lambda: language_model(_LARGEST), first_feed(_LARGEST, _PROMPT)),
}
"""What makes each model, and what is fed to it. The last two have their weights in a file of their own."""


def written(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the paths of a model and its feed, which are written where they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, feed_path = folder / f"{name}.onnx", folder / f"{name}.npz"
    make, feed = MODELS[name]
    if not path.exists():
        is_beside = name in ("language", "largest")
        onnx.save_model(make(), path, save_as_external_data=is_beside, location=f"{name}.data")
    np.savez(feed_path, **feed)
    return path, feed_path


def _convolution(writer: Writer, x: str, before: int, width: int, size: int, stride: int = 1) -> str:
    weight, bias = (
        writer.constant(writer.numbers(width, before, size, size)),
        writer.constant(np.zeros(width, np.float32)),
    )
    pads, strides = [size // 2] * 4, [stride, stride]
    return writer.node("Relu", writer.node("Conv", x, weight, bias, pads=pads, strides=strides))


def _normalized(writer: Writer, x: str, width: int) -> str:
    parts = [writer.constant(np.full(width, value, np.float32)) for value in (1, 0, 0, 1)]
    return writer.node("Relu", writer.node("BatchNormalization", x, *parts))


def _model(writer: Writer, output: str, shape: list[int], shape_out: list[int]) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape_out)
    graph = helper.make_graph(writer.nodes, "network", [given], [made], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
