"""Time from the start of a process to its first result, and peak memory, compared with ONNX Runtime and OpenVINO alone.

A way with a name that ends in `file` opens a compiled model; its peer is OpenVINO with a blob that it wrote. `first`
and `second` have a cache (docs/cache.md), which is empty at first. `qnn` is an emulator on machines without that NPU.

Every start is a process of its own. Ways take turns, and medians count. Peak memory is the system's count for the
process (VmHWM). The first round does not count. After it, the system's memory holds all files, and modules are compiled
to bytecode as installers leave them, whatever PYTHONDONTWRITEBYTECODE is. `--folder` keeps the models. `largest`, a
model of 3 GiB, is only measured if it is named.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import ROOT, Results
from benchmarks.models.language_models import Sizes, first_feed, language_model
from benchmarks.models.networks import encoder
from benchmarks.models.quantized_models import resnet
from benchmarks.models.writer import Writer

_FEED = "import sys, numpy as np; path, feed = sys.argv[1], dict(np.load(sys.argv[2]))\n"
_OURS = _FEED + "import nnadapter as nna; nna.InferenceSession(path, devices={!r}).run(None, feed)\n"
_REPORT = (
    "import sys; from nnadapter.cli import main\n"
    "main(['report', sys.argv[1], '-d', {!r}, '--output', '/dev/null'], standalone_mode=False)\n"
)
_END = "print(max(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1], flush=True)\n"
_BLOB = (
    _FEED
    + "import openvino as o; blob = open(path + '.blob', 'rb').read()\n"  # which the engine reads, and does not own
    "compiled = o.Core().import_model(blob, 'CPU'); compiled(feed)\n"
)
_FILE = _FEED + "import nnadapter as nna; nna.InferenceSession(path + '.{}').run(None, feed)\n"
_CACHED = (
    _FEED + "import tempfile, nnadapter as nna; folder = tempfile.TemporaryDirectory(); kept = {}\n"
    "nna.InferenceSession(path, devices={!r}, options={{'cache_dir': kept}}).run(None, feed)\n"
)
_OPENVINO = "{'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'f32'}"
WAYS = {
    "ONNX Runtime": _FEED + "import onnxruntime as o; o.InferenceSession(path).run(None, feed)\n",
    "cpu": _OURS.format("cpu"),
    "OpenVINO": _FEED + f"import openvino as o; o.Core().compile_model(path, 'CPU', {_OPENVINO})(feed)\n",
    "openvino": _OURS.format("openvino"),
    "fake_npu": _OURS.format("fake_npu"),
    "fake_npu file": _FILE.format("fake_npu"),
    "openvino file": _FILE.format("openvino"),
    "OpenVINO blob": _BLOB,
    "openvino first": _CACHED.format("folder.name", "openvino"),
    "openvino second": _CACHED.format("path + '.cache'", "openvino"),
    "qnn first": _CACHED.format("folder.name", "qnn"),
    "qnn second": _CACHED.format("path + '.cache'", "qnn"),
    "report fake_npu": _REPORT.format("fake_npu"),
    "report openvino": _REPORT.format("openvino"),
}
"""The code of each process."""
_WRITING = (
    "import nnadapter as nna; shapes = {{name: array.shape for name, array in feed.items()}}\n"
    "nna.compile(path, path + '.{}', devices={!r}, input_shapes=shapes)\n"
)
WRITERS = {
    "fake_npu file": ("fake_npu", _FEED + _WRITING.format("fake_npu", "fake_npu")),
    "openvino file": ("openvino", _FEED + _WRITING.format("openvino", "openvino")),
    "OpenVINO blob": (
        "blob",
        _FEED + f"import openvino as o; compiled = o.Core().compile_model(path, 'CPU', {_OPENVINO})\n"
        "open(path + '.blob', 'wb').write(compiled.export_model().getvalue())\n",
    ),
}
"""Ways that read a compiled file -> the suffix of its name, and the code that writes it."""


Feed = Mapping[str, np.ndarray]
_LANGUAGE_MODEL = Sizes(layers=20, width=1024, heads=16, words=24_000)
_LARGEST = Sizes(layers=40, width=1280, heads=16, words=8_000)
_PROMPT = (1, 2, 3, 4)


def detector() -> onnx.ModelProto:
    """Return a small network for speech: convolutions over 512 samples and an LSTM, 1 MB of weights."""
    writer, x, channels = Writer(20), "x", 1
    for width, stride in ((64, 4), (128, 4), (64, 2), (128, 2)):
        weight, bias = writer.constant(writer.numbers(width, channels, 3)), writer.constant(np.zeros(width, np.float32))
        x = writer.node("Relu", writer.node("Conv", x, weight, bias, pads=[1, 1], strides=[stride]))
        channels = width
    x = writer.node("Transpose", x, perm=[2, 0, 1])
    weights = [writer.constant(writer.numbers(1, 4 * channels, channels)) for _ in range(2)]
    x = writer.node("ReduceMean", writer.node("LSTM", x, *weights, hidden_size=channels), axes=[0, 1], keepdims=0)
    return _model(writer, writer.node("Sigmoid", x), [1, 1, 512], [1, channels])


def squeezing() -> onnx.ModelProto:
    """Return a network like SqueezeNet 1.1, 5 MB of weights."""
    writer = Writer(21)
    x, channels = _convolution(writer, "x", 3, 64, 3, stride=2), 64
    for widths in ((16, 16), (32, 32), (48, 48, 64, 64)):
        x = writer.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
        for width in widths:
            narrow = _convolution(writer, x, channels, width, 1)
            wide = [_convolution(writer, narrow, width, 4 * width, size) for size in (1, 3)]
            x, channels = writer.node("Concat", *wide, axis=1), 8 * width
    x = writer.node("GlobalAveragePool", _convolution(writer, x, channels, 1000, 1))
    return _model(writer, writer.node("Flatten", x), [1, 3, 224, 224], [1, 1000])


def densenet() -> onnx.ModelProto:
    """Return a network like DenseNet-121: every layer reads all layers before it; 32 MB of weights."""
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
            result = _convolution(writer, _normalized(writer, narrow, 128), 128, 32, 3)
            x, width = writer.node("Concat", x, result, axis=1), width + 32
    x = writer.node("Flatten", writer.node("GlobalAveragePool", _normalized(writer, x, width)))
    product = writer.node("MatMul", x, writer.constant(writer.numbers(width, 1000)))
    return _model(writer, product, [1, 3, 224, 224], [1, 1000])


def _ocr(kind: str, *shape: int) -> tuple[Callable[[], onnx.ModelProto], Feed]:
    """Return a reader of one of RapidOCR's models with a static input shape, and a feed."""

    def read() -> onnx.ModelProto:
        spec = find_spec("rapidocr")
        assert spec is not None and spec.origin is not None, "these models are those of the package rapidocr"
        (path,) = (Path(spec.origin).parent / "models").glob(f"*_{kind}_*.onnx")
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
"""The maker of each model, and its feed. The last two have their weights in a separate file."""


def written(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the paths of a model and its feed, and write the missing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path, feed_path = folder / f"{name}.onnx", folder / f"{name}.npz"
    make, feed = MODELS[name]
    if not path.exists():
        is_beside = name in ("language", "largest")
        onnx.save_model(make(), path, save_as_external_data=is_beside, location=f"{name}.data")
    np.savez(feed_path, **feed)
    return path, feed_path


def _convolution(writer: Writer, x: str, channels: int, width: int, size: int, stride: int = 1) -> str:
    weight, bias = (
        writer.constant(writer.numbers(width, channels, size, size)),
        writer.constant(np.zeros(width, np.float32)),
    )
    pads, strides = [size // 2] * 4, [stride, stride]
    return writer.node("Relu", writer.node("Conv", x, weight, bias, pads=pads, strides=strides))


def _normalized(writer: Writer, x: str, width: int) -> str:
    parts = [writer.constant(np.full(width, value, np.float32)) for value in (1, 0, 0, 1)]
    return writer.node("Relu", writer.node("BatchNormalization", x, *parts))


def _model(writer: Writer, output: str, shape: list[int], shape_out: list[int]) -> onnx.ModelProto:
    input_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    output_info = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape_out)
    graph = helper.make_graph(writer.nodes, "network", [input_info], [output_info], writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    ways = [way for way in WAYS if find_spec("onnxruntime_qnn") is not None or not way.startswith("qnn")]
    models = [name for name in MODELS if name != "largest"]
    parser.add_argument("--models", nargs="+", choices=MODELS, default=models)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=ways)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="of the models, kept for the next time")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every model in every way."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for name in options.models:
            paths = tuple(map(str, written(name, folder)))
            compile_for(options.ways, paths)
            table = results.table(name)
            measurements = measured({way: WAYS[way] for way in options.ways}, paths, options.rounds)
            for way, (seconds, megabytes) in measurements.items():
                table.add({"way": way, "seconds": seconds, "MB": megabytes})


def compile_for(ways: Iterable[str], paths: tuple[str, ...]) -> None:
    """Write the compiled files of some ways that do not exist."""
    for suffix, code in (WRITERS[way] for way in ways if way in WRITERS):
        if not Path(f"{paths[0]}.{suffix}").exists():
            subprocess.run([sys.executable, "-W", "ignore", "-c", code, *paths], check=True, cwd=ROOT)


def measured(ways: Mapping[str, str], arguments: tuple[str, ...], rounds: int) -> Mapping[str, tuple[float, float]]:
    """Return the median seconds and peak megabytes of every way, after a round that does not count."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return _medians(ways, arguments, rounds, {**environment, "PYTHONPYCACHEPREFIX": bytecode})


def _medians(
    ways: Mapping[str, str], arguments: tuple[str, ...], rounds: int, environment: Mapping[str, str]
) -> Mapping[str, tuple[float, float]]:
    durations: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    chance, order = random.Random(0), list(ways)
    for number in range(rounds + 1):
        chance.shuffle(order)
        for way in order:
            result = start(ways[way], arguments, environment)
            if number:
                durations[way].append(result)
    medians = {way: tuple(map(statistics.median, zip(*results, strict=True))) for way, results in durations.items()}
    return {way: (seconds, megabytes) for way, (seconds, megabytes) in medians.items()}


def start(code: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    """Run code in a process of its own, and return the seconds until its result and its peak megabytes."""
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", code + _END, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    return seconds, int(line) / 1024
