"""Operations on the bits of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import Converter, converter
from nnadapter.ir.operand import DataType
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from nnadapter.onnx.schemas import data_type_name
from partition.verdict import Reason

_BITWISE: Mapping[str, tuple[str, int]] = {
    "BitwiseAnd": ("BITWISE_AND", 2),
    "BitwiseNot": ("BITWISE_NOT", 1),
    "BitwiseOr": ("BITWISE_OR", 2),
    "BitwiseXor": ("BITWISE_XOR", 2),
}
"""How each is called in the adapter IR, and how many inputs it has."""


def _bitwise(type_: str, count: int) -> Converter:
    def convert_bitwise(context: ConversionContext, node: OnnxNode) -> None:
        inputs = [context.operand(node.input(position)) for position in range(count)]
        context.add(type_, inputs, outputs=node.outputs)

    return convert_bitwise


for _bitwise_op, (_bitwise_type, _count) in _BITWISE.items():
    converter(_bitwise_op, 18)(_bitwise(_bitwise_type, _count))


@converter("BitShift", 11, 28)
def convert_bit_shift(context: ConversionContext, node: OnnxNode) -> None:
    """BitShift; version 28 adds signed integers, and says what a shift beyond the bits gives.

    Source: ONNX BitShift-28.
    """
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise Refusal(
            Reason.INVALID_NODE, f"attribute 'direction' of BitShift is {direction!r}; expected 'LEFT' or 'RIGHT'"
        )
    inputs = (context.operand(node.input(0)), context.operand(node.input(1)))
    context.add("BIT_SHIFT", inputs, {"direction": direction.lower()}, node.outputs)


@converter("BitCast", 26)
def convert_bit_cast(context: ConversionContext, node: OnnxNode) -> None:
    """BitCast: the same bits as another data type of equal width. Source: ONNX BitCast-26."""
    target = data_type_name(node.integer("to"))
    if target not in DataType.__members__.values():
        raise Refusal(Reason.UNSUPPORTED_TYPE, f"attribute 'to' of BitCast is {target}, which no operand can have")
    context.add("BIT_CAST", (context.operand(node.input(0)),), {"to": target}, node.outputs)
