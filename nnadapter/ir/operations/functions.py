"""Further elementwise functions: the circular and hyperbolic ones, thresholds, tests of numbers, a gated activation.

Results have the dimensions and the layout of the input. FLOPs count as in `elementwise`, one step for each function
that a library has under its own name.
"""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import ANY, FLOATING, NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, number, pair, per_output, present, row
from nnadapter.ir.operations.shape_rules import as_first, spread_pair
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = (Role("input", FLOATING),)


def _celu(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    if number(attributes, "alpha") == 0:
        raise InvalidModelError("alpha is 0, expected another number: the input is divided by it")
    return as_first(types, attributes)


def _tested(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    return (like(first, first.dimensions, DataType.BOOL),)


def _gated(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    gate, value = present(types, 0), present(types, 1)
    if gate.dimensions != value.dimensions:
        raise InvalidModelError(
            f"gate {list(gate.dimensions)} and value {list(value.dimensions)} differ, expected equal dimensions"
        )
    return (like(gate, gate.dimensions),)


def _compared(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    (result,) = spread_pair(types, attributes)
    return (OperandType(DataType.BOOL, result.dimensions, result.layout),)


_PLAIN = (
    ("ACOS", "ONNX Acos-22"),
    ("ACOSH", "ONNX Acosh-22"),
    ("ASIN", "ONNX Asin-22"),
    ("ASINH", "ONNX Asinh-22"),
    ("ATAN", "ONNX Atan-22"),
    ("ATANH", "ONNX Atanh-22"),
    ("COSH", "ONNX Cosh-22"),
    ("SINH", "ONNX Sinh-22"),
    ("TAN", "ONNX Tan-22"),
    ("RSQRT", "NNAPI RSQRT; NNADAPTER_RSQRT: 1 / sqrt(x)"),
)

ROWS: tuple[OperationSchema, ...] = (
    *(row(type_, _INPUT, as_first, per_output(1), source) for type_, source in _PLAIN),
    row("SQUARE", (Role("input", NUMERIC),), as_first, per_output(1), "NNADAPTER_SQUARE"),
    row("NOT_EQUAL", pair(ANY), _compared, per_output(1), "NNAPI NOT_EQUAL; NNADAPTER_NOT_EQUAL"),
    row(
        "FLOOR_DIV",
        pair(NUMERIC),
        spread_pair,
        per_output(2),
        "NNADAPTER_FLOOR_DIV: the quotient rounded down, of integers too",
    ),
    row(
        "CELU",
        _INPUT,
        _celu,
        per_output(6),
        "ONNX Celu-28: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))",
        attributes=(Attribute("alpha", AttributeKind.FLOAT, 1.0),),
    ),
    row(
        "SHRINK",
        (Role("input", NUMERIC),),
        as_first,
        per_output(3),
        "ONNX Shrink-9: x + bias below -lambd, x - bias above lambd, 0 between",
        attributes=(Attribute("bias", AttributeKind.FLOAT, 0.0), Attribute("lambd", AttributeKind.FLOAT, 0.5)),
    ),
    row(
        "THRESHOLDED_RELU",
        _INPUT,
        as_first,
        per_output(1),
        "ONNX ThresholdedRelu-22: x above alpha, 0 elsewhere",
        attributes=(Attribute("alpha", AttributeKind.FLOAT, 1.0),),
    ),
    row("IS_NAN", _INPUT, _tested, per_output(1), "ONNX IsNaN-20"),
    row(
        "IS_INF",
        _INPUT,
        _tested,
        per_output(1),
        "ONNX IsInf-20",
        attributes=(
            Attribute("detect_negative", AttributeKind.BOOL, True),
            Attribute("detect_positive", AttributeKind.BOOL, True),
        ),
    ),
    row(
        "SWIGLU",
        (Role("gate", FLOATING), Role("value", FLOATING, same_dtype_as="gate")),
        _gated,
        per_output(6),
        "ONNX SwiGLU-28; Shazeer 2020: gate * sigmoid(alpha * gate) * value",
        attributes=(Attribute("alpha", AttributeKind.FLOAT, 1.0),),
    ),
)
"""The rows of this family."""
