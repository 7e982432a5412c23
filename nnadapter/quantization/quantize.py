"""Quantization of a model with the same settings for all nodes: `nnadapter.quantize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter.drivers.capability import Precision
from nnadapter.errors import InvalidModelError, InvalidOptionError, close_names
from nnadapter.files.atomic_files import check_writable
from nnadapter.onnx.files import save_model
from nnadapter.onnx.signature import Signature, read_signature
from nnadapter.quantization.calibration import Distribution, distributions
from nnadapter.quantization.equalization import equalized
from nnadapter.quantization.products import FloatModel, read_float_model
from nnadapter.quantization.qdq import Way, bias_shifts, quantize_nodes, quantized_results
from nnadapter.quantization.samples import Data, Feed, read_samples

if TYPE_CHECKING:
    import onnx

MOST_SAMPLES = 128


def quantize(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    data: Data,
    out: str | os.PathLike[str] | None = None,
    *,
    precision: str = Precision.W8A8,
    ranges: str = "mse",
    per_channel: bool = True,
    symmetric: bool = False,
    reduced: bool = False,
    smooth: float = 0.0,
    equalize: bool = False,
    correct_bias: bool = True,
    results: bool = True,
    every_operator: bool = False,
    exclude: Collection[str] = (),
    max_samples: int = MOST_SAMPLES,
    advance: Callable[[], None] = lambda: None,
) -> onnx.ModelProto:
    """Quantize an ONNX model after training, as a QDQ model for any runtime.

    By default, convolutions and matrix products compute on 8-bit integers, and everything else in float32. ONNX
    Runtime's basic optimizations are applied first.

    Args:
        model: float model: path, bytes or `onnx.ModelProto`, or path of a Paddle model.
        data: sample inputs: a folder of .npz, .npy or pictures, such a file, an iterable of feeds, or a Ray dataset.
        out: file to write, atomically.
        precision: `w8a8`, `w8a16` (16-bit activations), `w8` (only weights), or `w4a16` (only weights of matrix
            products).
        ranges: how ranges of activations are chosen: `minmax`, `percentile`, `entropy` or `mse`.
        per_channel: weights have a scale per output channel.
        symmetric: activations have their zero point in the middle.
        reduced: weights use 7 of 8 bits, for x86 processors without VNNI, where sums of 8-bit products saturate.
        smooth: SmoothQuant's alpha for matrix products, 0 to 1; 0 for none.
        equalize: first equalize the weights of consecutive convolutions.
        correct_bias: shift biases so that quantization preserves the mean of each channel.
        results: results of convolutions are quantized as well, which most engines need to compute on integers. OpenVINO
            does not, and is more accurate without.
        every_operator: quantize every operator with float values, for devices that compute only on integers.
        exclude: nodes to leave in float32: names, patterns with `*`, or op types.
        max_samples: maximum number of samples to use.
        advance: called after each sample.

    Raises:
        CalibrationDataError: there is no sample, or one does not fit.
        InvalidModelError, ModelFileError: the model cannot be read or written, or has nothing to quantize.
        InvalidOptionError: an option is not valid.
    """
    way = Way(precision=Precision(precision) if precision in [*Precision] else precision,  # type: ignore[arg-type]
              ranges=ranges, per_channel=per_channel, symmetric=symmetric, reduced=reduced,
              results=results or every_operator, smooth=smooth, every_operator=every_operator)  # fmt: skip
    if isinstance(max_samples, bool) or not isinstance(max_samples, int) or max_samples < 1:
        raise InvalidOptionError(f"max_samples must be an integer of at least 1, got {max_samples!r}")
    target = None if out is None else Path(out)
    if target is not None:
        check_writable(target)
    float_model = read_float_model(model)
    feeds = [sample.feed for sample in read_samples(data, signature_of(float_model), max_samples)]
    if equalize:
        float_model = equalized(float_model)
    nodes = quantizable(float_model, way)
    patterns = [exclude] if isinstance(exclude, str) else [*exclude]
    _check_exclusions(float_model, patterns)
    chosen = [name for name, op_type in nodes.items() if not any(_matches(each, name, op_type) for each in patterns)]
    if not chosen:
        ops = "Gemm or MatMul" if way.precision is Precision.W4A16 else "Conv, ConvTranspose, Gemm or MatMul"
        raise InvalidModelError(
            f"nothing can be quantized to {way.precision.value}: the model has no {'other ' if nodes else ''}{ops} of "
            f"float32 with constant weights{' than those excluded' if nodes else ''}; choose another precision, or "
            "exclude less"
        )
    ways = dict.fromkeys(chosen, way)
    values = calibrate(float_model, ways, feeds, advance)
    shifts = bias_shifts(float_model, ways, values, feeds) if correct_bias else {}
    quantized = quantize_nodes(float_model, ways, values, shifts)
    if target is not None:
        save_model(quantized, target)
    return quantized


def signature_of(model: FloatModel) -> Signature:
    """Return the signature of a model."""
    initialized = frozenset(tensor.name for tensor in model.model.graph.initializer)
    return read_signature(model.model, [value.name for value in model.model.graph.input], initialized)


def quantizable(model: FloatModel, way: Way) -> dict[str, str]:
    """Return name and op type of each node that can be quantized."""
    products = {product.node: product for product in model.products}
    found = {}
    for node in model.model.graph.node:
        product = products.get(node.name)
        if product is None:
            is_able = way.every_operator and way.quantizes_activations and bool(_float_values(model, node))
        elif way.precision is Precision.W4A16:
            is_able = bool(product.weight) and product.op_type in ("MatMul", "Gemm")
        else:
            is_able = way.quantizes_activations or bool(product.weight)
        if is_able:
            found[node.name] = node.op_type
    return found


_NOT_QUANTIZED = (
    "Cast", "ConstantOfShape", "GRU", "If", "LSTM", "Loop", "NonZero", "RNN", "Range", "Scan", "Shape", "Size",
)  # fmt: skip


def _float_values(model: FloatModel, node: onnx.NodeProto) -> list[str]:
    """Return the float32 values of a node; empty if it cannot be quantized."""
    if node.op_type in _NOT_QUANTIZED or node.domain not in ("", "ai.onnx"):
        return []
    values = [name for name in (*node.input, *node.output) if name and name not in model.constants]
    return [name for name in values if model.dtypes.get(name) == 1 and name not in model.sizes]


def calibrate(
    model: FloatModel,
    ways: Mapping[str, Way],
    feeds: Sequence[Feed],
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Distribution]:
    """Return the distributions of quantized values."""
    axes: dict[str, int] = {}
    products = {product.node: product for product in model.products}
    for node in model.model.graph.node:
        way, product = ways.get(node.name), products.get(node.name)
        if way is None or not way.quantizes_activations:
            continue
        if product is not None:
            axes.update((name, product.input_axis) for name in product.activations)
            axes.update((name, 1) for name in quantized_results(model, {node.name: way}) if name not in axes)
        if way.every_operator:
            axes.update((name, 1) for name in _float_values(model, node) if name not in axes)
    return distributions(model, axes, feeds, advance) if axes else {}


def _check_exclusions(model: FloatModel, patterns: Collection[str]) -> None:
    nodes = model.model.graph.node
    for pattern in patterns:
        if not any(_matches(pattern, node.name, node.op_type) for node in nodes):
            names = [*dict.fromkeys((*(node.name for node in nodes), *(node.op_type for node in nodes)))]
            raise InvalidOptionError(
                f"exclude has {pattern!r}, which is no node or op type; {close_names(pattern, names)}"
            )


def _matches(pattern: str, name: str, op_type: str) -> bool:
    return pattern == op_type or fnmatchcase(name, pattern)
