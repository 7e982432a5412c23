"""Converters of Fourier transforms, window functions and mel filters.

Preparation folds small constant tables; large ones are built here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter import limits
from nnadapter.converters.context import ConversionContext, data_type_attribute, invalid, normalize_axis
from nnadapter.converters.movement import add_result
from nnadapter.converters.registry import Converter, NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import Array, DataType


@converter("DFT", 17, 20)
def convert_dft(context: ConversionContext, node: OnnxNode) -> None:
    """Convert DFT to DFT. Refused: run-time length or axis."""
    if node.since_version < 20:
        axis = node.integer("axis", 1)
    else:
        axis = context.single_integer(node, 2) if node.input(2) else -2
    dimensions = context.dimensions(node.input(0))
    axis = normalize_axis(node, axis, len(dimensions))
    inverse, onesided = (node.integer(name, 0) != 0 for name in ("inverse", "onesided"))
    length = 2 * (dimensions[axis] - 1) if inverse and onesided else dimensions[axis]
    length = context.single_integer(node, 1) if node.input(1) else length
    context.add_for(node, "DFT", {"axis": axis, "length": length, "inverse": inverse, "onesided": onesided})


@converter("STFT", 17)
def convert_stft(context: ConversionContext, node: OnnxNode) -> None:
    """Convert STFT to STFT. Refused: run-time frame step or length.

    A signal without its last axis is real, as in ONNX Runtime.
    """
    signal, dimensions, window = context.operand(node.input(0)), context.dimensions(node.input(0)), node.input(2)
    if len(dimensions) == 2:
        signal = context.apply("RESHAPE", signal, shape=(*dimensions, 1))
    if node.input(3):
        length = context.single_integer(node, 3)
    elif window:
        length = (0, *context.dimensions(window))[-1]
    else:
        length = (0, *dimensions[:2])[-1]
    onesided = node.integer("onesided", 1) != 0
    attributes = {"frame_step": context.single_integer(node, 1), "frame_length": length, "onesided": onesided}
    context.apply("STFT", signal, *((context.operand(window),) if window else ()), outputs=node.outputs, **attributes)


_WINDOWS: Mapping[str, tuple[float, ...]] = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (25 / 46, -21 / 46),
    "HannWindow": (0.5, -0.5),
}
"""Weights of cos(0), cos(t), cos(2t). Source: ONNX BlackmanWindow, HammingWindow, HannWindow-17."""


def _window(weights: tuple[float, ...]) -> Converter:
    def convert_window(context: ConversionContext, node: OnnxNode) -> None:
        size = int(_number(context, node, 0))
        _check_size(node, size)
        # A symmetric window of one element has period 0; avoid division by it.
        period = max(size if node.integer("periodic", 1) else size - 1, 1)
        angles = np.arange(max(size, 0)) * (2 * np.pi / period)
        _add_table(context, node, sum(weight * np.cos(order * angles) for order, weight in enumerate(weights)))

    return convert_window


for _op_type, _weights in _WINDOWS.items():
    converter(_op_type, 17)(_window(_weights))


@converter("MelWeightMatrix", 17)
def convert_mel_weight_matrix(context: ConversionContext, node: OnnxNode) -> None:
    """Convert MelWeightMatrix, with constant inputs, to a constant.

    Columns are triangles with corners evenly spaced on the mel scale, rounded down to spectrogram bins. A column is 1
    where its first two corners coincide.
    """
    bins, length, rate, lowest, highest = (_number(context, node, position) for position in range(5))
    if bins < 1 or length < 1 or rate <= 0 or not -700 < lowest <= highest:
        raise invalid(
            f"inputs of MelWeightMatrix are {(bins, length, rate, lowest, highest)}; expected num_mel_bins, "
            "dft_length and sample_rate above 0, and -700 < lower_edge_hertz <= upper_edge_hertz"
        )
    _check_size(node, bins * length)
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lowest, highest))
    mels = low + np.arange(int(bins) + 2) * ((high - low) / (bins + 2))
    edges = np.floor((length + 1) * 700 * (10 ** (mels / 2595) - 1) / rate)
    _add_table(context, node, _triangles(edges, int(length) // 2 + 1))


def _check_size(node: OnnxNode, size: float) -> None:
    if size > limits.TABLE_ELEMENTS:
        raise Refusal(
            Reason.MEMORY_LIMIT,
            f"{node.op_type} makes a table of {size:.0f} elements; at most {limits.TABLE_ELEMENTS} are allowed",
        )


def _triangles(edges: Array, rows: int) -> Array:
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    row = np.arange(rows)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(left == center, row == center, (row - left) / (center - left))
        falling = (right - row) / (right - center)
    rises = (left <= row) & (row <= center)
    falls = (center <= row) & (row < right)
    return np.where(falls, falling, np.where(rises, rising, 0.0))


def _number(context: ConversionContext, node: OnnxNode, position: int) -> float:
    value = context.constant(node.input(position))
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise invalid(f"input {position} of {node.op_type} is not a single number")
    return float(value.reshape(-1)[0])


def _add_table(context: ConversionContext, node: OnnxNode, table: Array) -> None:
    target = data_type_attribute(node, "output_datatype", 1)
    add_result(context, node, np.asarray(table).astype(np.dtype(target)))


@exporter("STFT")
def export_stft(write: NodeWriter) -> str:
    """Export STFT as STFT."""
    of = write.operation
    x, window = write.inputs
    step, length = (write.number(size, DataType.INT64) for size in (of.frame_step, of.frame_length))
    return write.node("STFT", x, step, window, length, onesided=of.onesided)
