"""Networks as ONNX Runtime's quantizers write them, and as its optimizer writes these.

Quantizers need files, so each model is made in a folder and read back.
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
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from benchmarks.fused_encoder import fused_encoder
from benchmarks.networks import networks
from benchmarks.quantized_models import activation_functions, mobilenet, resnet, transformer

_BATCHES = 2
"""Seeded inputs that ranges are taken from."""
_WORDS = 1000
"""Token numbers below this are drawn."""
_LARGEST = {"kinds": 2, "mask": 2}
"""Inputs of integers that have less to say."""
Network = Callable[[], onnx.ModelProto]
Quantizer = Callable[[onnx.ModelProto, Path], None]
"""Writes a model quantized to a path."""
Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A model as a tool wrote it."""

    name: str
    model: onnx.ModelProto
    before: onnx.ModelProto
    """The model with its weights in float32."""


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> Feeds:
    """Seeded noise for the inputs of a model: reals around 0, and token numbers."""
    random = np.random.default_rng(seed)
    known = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for given in model.graph.input:
        if given.name in known:
            continue
        type_ = given.type.tensor_type
        shape = [size.dim_value or 1 for size in type_.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
        is_real = dtype.kind == "f"
        drawn = (
            random.standard_normal(shape) if is_real else random.integers(0, _LARGEST.get(given.name, _WORDS), shape)
        )
        feeds[given.name] = drawn.astype(dtype)
    return feeds


def written(names: Sequence[str] = ()) -> Iterator[Written]:
    """Make every model, or those whose names contain one of `names`, as its quantizer writes it and then optimized."""
    for name, (network, quantizer, level) in MODELS.items():
        if names and not any(each in name for each in names):
            continue
        before = network()
        quantized, optimized = quantize(before, quantizer, level)
        yield Written(name, quantized, before)
        yield Written(f"{name}, optimized", optimized, before)


def quantize(
    model: onnx.ModelProto, quantizer: Quantizer, level: str = "EXTENDED"
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model as a quantizer writes it, and that as the optimizer writes it at one of its levels."""
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
    """Quantize weights, and activations as the model runs."""
    source = path.with_name("network.onnx")
    onnx.save(model, source)
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, **options)


def few_bits(model: onnx.ModelProto, path: Path, **options: Any) -> None:
    """Quantize weights of products, and tables that are looked up, to some bits in blocks."""
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
"""By name: a network, what quantizes it, and how far it is optimized then."""
