"""Fourier transforms."""

from __future__ import annotations

from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operand import DataType


@exporter("DFT")
def export_dft(write: NodeWriter) -> str:
    """DFT. Source: ONNX DFT-20."""
    of = write.operation
    numbers = [write.number(number, DataType.INT64) for number in (of.length, of.axis)]
    return write.node("DFT", write.inputs[0], *numbers, inverse=of.inverse, onesided=of.onesided)


@exporter("STFT")
def export_stft(write: NodeWriter) -> str:
    """STFT. Source: ONNX STFT-17."""
    of = write.operation
    x, window = write.inputs
    step, length = (write.number(size, DataType.INT64) for size in (of.frame_step, of.frame_length))
    return write.node("STFT", x, step, window, length, onesided=of.onesided)
