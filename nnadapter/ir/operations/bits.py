"""Operations on the bits of numbers."""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import INTEGER, DataType, OperandType
from nnadapter.ir.operations.access import string
from nnadapter.ir.operations.broadcasting import broadcast
from nnadapter.ir.operations.layouts import layout_of, like
from nnadapter.ir.operations.row import Types, no_flops, per_output, present, row
from nnadapter.ir.schema import Attribute, Attributes, Kind, OperationSchema, Role

_PAIR = (Role("x", INTEGER), Role("y", INTEGER, same="x"))


def _pairwise(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, second = present(types, 0), present(types, 1)
    dimensions = broadcast((first.dimensions, second.dimensions))
    return (OperandType(first.dtype, dimensions, layout_of((first, second), len(dimensions))),)


def _inverted(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    return (like(first, first.dimensions),)


def _bit_cast(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, target = present(types, 0), DataType(string(attributes, "to"))
    if first.dtype.itemsize != target.itemsize:
        raise InvalidModelError(
            f"to is {target.value} of {8 * target.itemsize:g} bits, "
            f"expected a data type of {8 * first.dtype.itemsize:g} bits as {first.dtype.value} has"
        )
    return (like(first, first.dimensions, target),)


ROWS: tuple[OperationSchema, ...] = (
    row("BITWISE_AND", _PAIR, _pairwise, per_output(1), "ONNX BitwiseAnd-18"),
    row("BITWISE_OR", _PAIR, _pairwise, per_output(1), "ONNX BitwiseOr-18"),
    row("BITWISE_XOR", _PAIR, _pairwise, per_output(1), "ONNX BitwiseXor-18"),
    row("BITWISE_NOT", (Role("input", INTEGER),), _inverted, per_output(1), "ONNX BitwiseNot-18"),
    row(
        "BIT_SHIFT",
        _PAIR,
        _pairwise,
        per_output(1),
        "ONNX BitShift-28: y negative or as large as the number of bits leaves the sign alone",
        attributes=(Attribute("direction", Kind.STRING, None, ("left", "right")),),
    ),
    row(
        "BIT_CAST",
        (Role("input"),),
        _bit_cast,
        no_flops,
        "ONNX BitCast-26",
        attributes=(Attribute("to", Kind.STRING, None, tuple(data_type.value for data_type in DataType)),),
    ),
)
"""The rows of this family."""
