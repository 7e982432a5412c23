"""Fourier transforms."""

from __future__ import annotations

from nnadapter.converters.axes import constant_integers, normalize_axis, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("DFT", 17)
def convert_dft_of_axis_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """DFT of version 17, whose axis is an attribute, 1 by default. Refused: a length that is not constant."""
    _add_transform(context, node, node.integer("axis", 1))


@converter("DFT", 20)
def convert_dft(context: ConversionContext, node: OnnxNode) -> None:
    """DFT with an axis input, -2 by default. Refused: length and axis that are not constant. Source: ONNX DFT-20."""
    axis = constant_integers(context, node, 2)
    _add_transform(context, node, -2 if axis is None else _single(node, 2, axis))


def _add_transform(context: ConversionContext, node: OnnxNode, axis: int) -> None:
    dimensions = context.dimensions(node.input(0))
    axis = normalize_axis(node, axis, len(dimensions))
    inverse, onesided = (node.integer(name, 0) != 0 for name in ("inverse", "onesided"))
    lengths = constant_integers(context, node, 1)
    usual = 2 * (dimensions[axis] - 1) if inverse and onesided else dimensions[axis]
    attributes: dict[str, AttributeValue] = {
        "axis": axis,
        "length": usual if lengths is None else _single(node, 1, lengths),
        "inverse": inverse,
        "onesided": onesided,
    }
    context.add("DFT", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("STFT", 17)
def convert_stft(context: ConversionContext, node: OnnxNode) -> None:
    """STFT. Refused: a frame step or length that is not constant.

    A signal without its last axis is real, as ONNX Runtime has it and onnxscript writes it. Source: ONNX STFT-17.
    """
    signal, dimensions, window = context.operand(node.input(0)), context.dimensions(node.input(0)), node.input(2)
    if len(dimensions) == 2:
        (signal,) = context.add("RESHAPE", (signal,), {"shape": (*dimensions, 1)})
    lengths = constant_integers(context, node, 3)
    if lengths is not None:
        length = _single(node, 3, lengths)
    elif window:
        length = (0, *context.dimensions(window))[-1]
    else:
        length = (0, *dimensions[:2])[-1]
    attributes: dict[str, AttributeValue] = {
        "frame_step": _single(node, 1, required_integers(context, node, 1)),
        "frame_length": length,
        "onesided": node.integer("onesided", 1) != 0,
    }
    inputs = (signal, *((context.operand(window),) if window else ()))
    context.add("STFT", inputs, attributes, node.outputs)


def _single(node: OnnxNode, position: int, values: tuple[int, ...]) -> int:
    if len(values) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input {position} of {node.op_type} is {list(values)}; expected one number")
    return values[0]
