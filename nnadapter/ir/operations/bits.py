"""Operations on the bits of numbers."""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import INTEGER, DataType, OperandType
from nnadapter.ir.operations.row import Types, no_flops, per_output, present, row, string
from nnadapter.ir.operations.shape_rules import as_first, spread_pair
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_PAIR = (Role("x", INTEGER), Role("y", INTEGER, same_dtype_as="x"))


def _bit_cast(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, target = present(types, 0), DataType(string(attributes, "to"))
    if first.dtype.itemsize != target.itemsize:
        raise InvalidModelError(
            f"to is {target.value} of {8 * target.itemsize:g} bits, "
            f"expected a data type of {8 * first.dtype.itemsize:g} bits as {first.dtype.value} has"
        )
    return (like(first, first.dimensions, target),)


ROWS: tuple[OperationSchema, ...] = (
    row("BITWISE_AND", _PAIR, spread_pair, per_output(1), "ONNX BitwiseAnd-18"),
    row("BITWISE_OR", _PAIR, spread_pair, per_output(1), "ONNX BitwiseOr-18"),
    row("BITWISE_XOR", _PAIR, spread_pair, per_output(1), "ONNX BitwiseXor-18"),
    row("BITWISE_NOT", (Role("input", INTEGER),), as_first, per_output(1), "ONNX BitwiseNot-18"),
    row(
        "BIT_SHIFT",
        _PAIR,
        spread_pair,
        per_output(1),
        "ONNX BitShift-28: y negative or as large as the number of bits leaves the sign alone",
        attributes=(Attribute("direction", AttributeKind.STRING, None, ("left", "right")),),
    ),
    row(
        "BIT_CAST",
        (Role("input"),),
        _bit_cast,
        no_flops,
        "ONNX BitCast-26",
        attributes=(Attribute("to", AttributeKind.STRING, None, tuple(data_type.value for data_type in DataType)),),
    ),
)
"""The rows of this family."""
