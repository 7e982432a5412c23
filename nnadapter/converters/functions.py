"""Further elementwise functions: the circular and hyperbolic ones, thresholds, tests of numbers, SwiGLU, CastLike."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.elementwise import check_saturation
from nnadapter.converters.registry import Converter, converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode

_FUNCTIONS: Mapping[str, tuple[str, tuple[int, ...], Mapping[str, float]]] = {
    "Acos": ("ACOS", (7, 22), {}),
    "Acosh": ("ACOSH", (9, 22), {}),
    "Asin": ("ASIN", (7, 22), {}),
    "Asinh": ("ASINH", (9, 22), {}),
    "Atan": ("ATAN", (7, 22), {}),
    "Atanh": ("ATANH", (9, 22), {}),
    "Celu": ("CELU", (12, 28), {"alpha": 1.0}),
    "Cosh": ("COSH", (9, 22), {}),
    "IsNaN": ("IS_NAN", (9, 13, 20), {}),
    "Shrink": ("SHRINK", (9,), {"bias": 0.0, "lambd": 0.5}),
    "Sinh": ("SINH", (9, 22), {}),
    "SwiGLU": ("SWIGLU", (28,), {"alpha": 1.0}),
    "Tan": ("TAN", (7, 22), {}),
    "ThresholdedRelu": ("THRESHOLDED_RELU", (10, 22), {"alpha": 1.0}),
}
"""Ops whose versions differ in data types alone, and the defaults of their numbers, of the same name on both sides."""


def _function(type_: str, count: int, defaults: Mapping[str, float]) -> Converter:
    def convert_function(context: ConversionContext, node: OnnxNode) -> None:
        attributes: dict[str, AttributeValue] = {name: node.number(name, value) for name, value in defaults.items()}
        inputs = [context.operand(node.input(position)) for position in range(count)]
        context.add(type_, inputs, attributes, node.outputs)

    return convert_function


for _function_op, (_function_type, _function_versions, _function_defaults) in _FUNCTIONS.items():
    converter(_function_op, *_function_versions)(
        _function(_function_type, 2 if _function_type == "SWIGLU" else 1, _function_defaults)
    )


@converter("IsInf", 10, 20)
def convert_is_inf(context: ConversionContext, node: OnnxNode) -> None:
    """IsInf, of either sign or both. Source: ONNX IsInf-20."""
    signs = ("detect_negative", "detect_positive")
    attributes: dict[str, AttributeValue] = {name: bool(node.integer(name, 1)) for name in signs}
    context.add("IS_INF", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("CastLike", 15, 19, 21, 23, 24, 25)
def convert_cast_like(context: ConversionContext, node: OnnxNode) -> None:
    """CastLike: a cast to the data type of the second input, of which nothing else is read.

    Source: ONNX CastLike-25, with the limits of Cast.
    """
    target = context.type_of(node.input(1)).dtype.value
    check_saturation(node, target)
    context.add("CAST", (context.operand(node.input(0)),), {"to": target}, node.outputs)
