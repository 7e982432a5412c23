"""Operations of several operands that broadcast: arithmetic, comparisons, logic, bits, selection."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.exporting.registry import Exporter, exporter
from nnadapter.exporting.writer import NodeWriter
from nnadapter.ir.operand import DataType

_BINARY: Mapping[str, str] = {
    "ADD": "Add",
    "AND": "And",
    "BITWISE_AND": "BitwiseAnd",
    "BITWISE_OR": "BitwiseOr",
    "BITWISE_XOR": "BitwiseXor",
    "DIV": "Div",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "MAX": "Max",
    "MIN": "Min",
    "MUL": "Mul",
    "OR": "Or",
    "POW": "Pow",
    "PRELU": "PRelu",
    "SUB": "Sub",
    "WHERE": "Where",
    "XOR": "Xor",
}
"""Operations that are one op without attributes on the same operands."""


def _binary(op_type: str) -> Exporter:
    return lambda write: write.node(op_type, *write.inputs)


for _type, _op_type in _BINARY.items():
    exporter(_type)(_binary(_op_type))


@exporter("SUM")
def export_sum(write: NodeWriter) -> str:
    """SUM; of integers, which ONNX's Sum does not take, as additions. Source: ONNX Sum-13."""
    if write.type.dtype.is_floating:
        return write.node("Sum", *write.inputs)
    total, *rest = write.inputs
    for name in rest:
        total = write.node("Add", total, name)
    return total


@exporter("NOT_EQUAL")
def export_not_equal(write: NodeWriter) -> str:
    """NOT_EQUAL, for which ONNX has no op."""
    return write.node("Not", write.node("Equal", *write.inputs))


@exporter("MOD")
def export_mod(write: NodeWriter) -> str:
    """MOD; the floored remainder of reals, which Mod has from version 28 on, spelled out. Source: ONNX Mod-13."""
    x, y = write.inputs
    if write.operation.fmod or not write.type.dtype.is_floating:
        return write.node("Mod", x, y, fmod=write.operation.fmod)
    remainder = write.node("Mod", x, y, fmod=True)
    return write.node("Where", _rounds_up(write, remainder, y), write.node("Add", remainder, y), remainder)


def _rounds_up(write: NodeWriter, remainder: str, y: str) -> str:
    """Where a quotient that was cut toward zero is above the one that is rounded down."""
    zero = write.number(0, write.type.dtype)
    signs = [write.node("Less", name, zero) for name in (remainder, y)]
    return write.node("And", write.node("Xor", *signs), write.node("Not", write.node("Equal", remainder, zero)))


@exporter("FLOOR_DIV")
def export_floor_div(write: NodeWriter) -> str:
    """FLOOR_DIV, for which ONNX has no op: Div, and one less where it cut a negative quotient."""
    x, y = write.inputs
    dtype, quotient = write.type.dtype, write.node("Div", x, y)
    if dtype.is_floating:
        return write.node("Floor", quotient)
    if dtype.value.startswith("u"):
        return quotient
    remainder = write.node("Sub", x, write.node("Mul", quotient, y))
    less = write.node("Sub", quotient, write.number(1, dtype))
    return write.node("Where", _rounds_up(write, remainder, y), less, quotient)


@exporter("BIT_SHIFT")
def export_bit_shift(write: NodeWriter) -> str:
    """BIT_SHIFT; of signed integers in opset 28, which brings them. Source: ONNX BitShift-28."""
    signed = not write.type.dtype.value.startswith("u")
    direction = write.operation.direction.upper()
    return write.node("BitShift", *write.inputs, opset=28 if signed else 0, direction=direction)


@exporter("RANGE")
def export_range(write: NodeWriter) -> str:
    """RANGE: start + index * delta, each element from its index, where ONNX's Range adds up. Source: ONNX Range-11."""
    start, delta = write.inputs
    limits = [write.number(limit, DataType.INT64) for limit in (0, write.operation.count, 1)]
    index = write.cast(write.node("Range", *limits), write.type.dtype)
    return write.node("Add", start, write.node("Mul", index, delta))
