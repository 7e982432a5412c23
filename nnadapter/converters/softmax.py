"""Softmax and its logarithm: along one axis since version 13, over a matrix made of the tensor before."""

from __future__ import annotations

from functools import partial
from math import prod

from nnadapter.converters.axes import normalize_axis
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import Converter, converter
from nnadapter.onnx.node import OnnxNode


def along_axis(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    """Convert as version 13 means it: the axis is the attribute's, the last one by default."""
    axis = normalize_axis(node, node.integer("axis", -1), len(context.dimensions(node.input(0))))
    context.add(type_, (context.operand(node.input(0)),), {"axis": axis}, node.outputs)


def over_matrix(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    """Convert as versions 1 and 11 mean it: over all axes from the attribute's on together, 1 by default.

    1. If all of them but one have a single element, that one is the axis.
    2. Otherwise the tensor is reshaped to the matrix and back.
    """
    dimensions = context.dimensions(node.input(0))
    rank, axis = len(dimensions), node.integer("axis", 1)
    axis = rank if axis == rank else normalize_axis(node, axis, rank)
    inputs = (context.operand(node.input(0)),)
    wide = [index for index in range(axis, rank) if dimensions[index] != 1]
    if len(wide) <= 1 and rank:
        context.add(type_, inputs, {"axis": wide[0] if wide else rank - 1}, node.outputs)
        return
    shape = (prod(dimensions[:axis]), prod(dimensions[axis:]))
    matrix = context.add("RESHAPE", inputs, {"shape": shape})
    result = context.add(type_, matrix, {"axis": 1})
    context.add("RESHAPE", result, {"shape": dimensions}, node.outputs)


def _register(op_type: str, type_: str) -> None:
    of_axis: Converter = partial(along_axis, type_)
    of_matrix: Converter = partial(over_matrix, type_)
    converter(op_type, 13)(of_axis)
    converter(op_type, 1, 11)(of_matrix)


_register("Softmax", "SOFTMAX")
_register("LogSoftmax", "LOG_SOFTMAX")
