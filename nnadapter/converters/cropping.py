"""Cropping and padding around the center."""

from __future__ import annotations

from nnadapter.converters.axes import normalize_axes, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.tracing import greatest, least
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("CenterCropPad", 18)
def convert_center_crop_pad(context: ConversionContext, node: OnnxNode) -> None:
    """CenterCropPad to a constant shape, as one PAD of which negative pads crop. Source: ONNX CenterCropPad-18.

    Of an odd number of elements, the larger half is cropped or padded at the end.
    """
    dimensions = context.dimensions(node.input(0))
    rank, axes_attribute = len(dimensions), node.integers("axes")
    axes = normalize_axes(node, range(rank) if axes_attribute is None else axes_attribute, rank)
    wanted = required_integers(context, node, 1)
    if len(wanted) != len(axes):
        raise Refusal(
            Reason.INVALID_NODE, f"CenterCropPad has shape {list(wanted)} for axes {list(axes)}; expected one per axis"
        )
    pads = [0] * (2 * rank)
    for axis, size in zip(axes, wanted, strict=True):
        more, less = greatest(size - dimensions[axis], 0), least(size - dimensions[axis], 0)
        begin = more // 2 - (-less) // 2
        pads[axis], pads[rank + axis] = begin, more + less - begin
    context.add("PAD", (context.operand(node.input(0)),), {"mode": "constant", "pads": tuple(pads)}, node.outputs)
