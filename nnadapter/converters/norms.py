"""Normalizations by a norm."""

from __future__ import annotations

from nnadapter.converters.axes import normalize_axes, normalize_axis
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode


@converter("RMSNormalization", 23)
def convert_rms_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """RMSNormalization. Source: ONNX RMSNormalization-23.

    `stash_type` asks for a precision of the first stage; a device computes it at least as precisely as its results.
    """
    rank = len(context.dimensions(node.input(0)))
    attributes: dict[str, AttributeValue] = {
        "axis": normalize_axis(node, node.integer("axis", -1), rank),
        "epsilon": node.number("epsilon", 1e-5),
    }
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("RMS_NORMALIZATION", inputs, attributes, node.outputs)


@converter("LpNormalization", 1, 22)
def convert_lp_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """LpNormalization of order 1 or 2. Source: ONNX LpNormalization-22."""
    axis = normalize_axis(node, node.integer("axis", -1), len(context.dimensions(node.input(0))))
    inputs = (context.operand(node.input(0)),)
    context.add("LP_NORMALIZATION", inputs, {"axis": axis, "p": node.integer("p", 2)}, node.outputs)


@converter("MeanVarianceNormalization", 9, 13)
def convert_mean_variance_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """MeanVarianceNormalization. Source: ONNX MeanVarianceNormalization-13, whose function adds 1e-9 to deviations."""
    axes_attribute = node.integers("axes")
    axes = normalize_axes(
        node, (0, 2, 3) if axes_attribute is None else axes_attribute, len(context.dimensions(node.input(0)))
    )
    inputs = (context.operand(node.input(0)),)
    context.add("MEAN_VARIANCE_NORMALIZATION", inputs, {"axes": tuple(sorted(axes))}, node.outputs)
