"""Elementwise operations, which broadcast as in numpy.

FLOPs are steps of the formula per element; exp, log, sqrt, erf, sin, cos, tanh and pow count as one.
"""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.row import (
    PerElement,
    Row,
    as_first,
    broadcast,
    check_broadcasts_to,
    family,
    layout_of,
    like,
    read_table,
)
from nnadapter.ir.operations.windows import FUSED, fusable, fused

row = family(cost="elementwise")


def _broadcast(*types: OperandType, dtype: DataType | None = None, **attributes: object) -> OperandType:
    dimensions = broadcast([type_.dimensions for type_ in types])
    first, dtype = types[0], dtype or types[0].dtype
    layout = layout_of(types, len(dimensions))
    if first.layout is layout and first.dtype is dtype:
        return like(first, dimensions)
    return OperandType(dtype, dimensions, layout)


def _compare(x: OperandType, y: OperandType) -> OperandType:
    return _broadcast(x, y, dtype=DataType.BOOL)


def _is_special(first: OperandType, **attributes: object) -> OperandType:
    return like(first, dtype=DataType.BOOL)


def _bit_cast(first: OperandType, to: str) -> OperandType:
    target = DataType(to)
    if first.dtype.itemsize != target.itemsize:
        raise InvalidModelError(
            f"to is {target.value} of {8 * target.itemsize:g} bits, expected a data type of "
            f"{8 * first.dtype.itemsize:g} bits, like {first.dtype.value} of the input"
        )
    return like(first, dtype=target)


def _prelu(first: OperandType, slope: OperandType) -> OperandType:
    check_broadcasts_to("slope", slope.dimensions, first.dimensions)
    return like(first)


def _modulo(x: OperandType, y: OperandType, fmod: bool) -> OperandType:
    if x.dtype.is_floating and not fmod:
        raise InvalidModelError("fmod is False for floats, expected True, which gives the sign of the dividend")
    return _broadcast(x, y)


def _celu(first: OperandType, alpha: float) -> OperandType:
    if alpha == 0:
        raise InvalidModelError("alpha is 0, expected another number: the input is divided by it")
    return like(first)


def _gated(gate: OperandType, value: OperandType, alpha: float) -> OperandType:
    if gate.dimensions != value.dimensions:
        raise InvalidModelError(
            f"gate {list(gate.dimensions)} and value {list(value.dimensions)} differ, expected equal dimensions"
        )
    return like(gate)


# CLIP allows min > max: ONNX defines the result as min(max(input, min), max), so it is max everywhere.
_UNARY = """\
ABS(input: number) | 1 | elementwise | table | NNAPI ABS; ONNX Abs-13
NEG(input: number) | 1 | elementwise | table | NNAPI NEG; ONNX Neg-13
SIGN(input: number) | 1 | elementwise | | ONNX Sign-13
FLOOR(input: number) | 1 | elementwise | | NNAPI FLOOR; ONNX Floor-13
CEIL(input: number) | 1 | elementwise | | ONNX Ceil-13
ROUND(input: number) | 1 | elementwise | | ONNX Round-11: halves to even
EXP(input: float) | 1 | function | table | NNAPI EXP; ONNX Exp-13
LOG(input: float) | 1 | function | table | NNAPI LOG; ONNX Log-13
SQRT(input: float) | 1 | function | table | NNAPI SQRT; ONNX Sqrt-13
RECIPROCAL(input: float) | 1 | elementwise | table | ONNX Reciprocal-13
ERF(input: float) | 1 | function | table | ONNX Erf-13
SIN(input: float) | 1 | function | table | NNAPI SIN; ONNX Sin-7
COS(input: float) | 1 | function | table | ONNX Cos-7
TANH(input: float) | 1 | function | table | NNAPI TANH; ONNX Tanh-13
SIGMOID(input: float) | 4 | function | table | NNAPI LOGISTIC; NNADAPTER_SIGMOID; ONNX Sigmoid-13
SOFTPLUS(input: float) | 3 | function | table | NNADAPTER_SOFTPLUS; ONNX Softplus-1: log(1 + exp(x))
SOFTSIGN(input: float) | 3 | function | table | ONNX Softsign-1: x / (1 + |x|)
MISH(input: float) | 5 | function | table | NNADAPTER_MISH; ONNX Mish-18: x * tanh(softplus(x))
RELU(input: number) | 1 | elementwise | table | NNAPI RELU; ONNX Relu-14
SWISH(input: float; alpha: float = 1.0) | 5 | function | table | \
NNADAPTER_SWISH; ONNX Swish-24: x * sigmoid(alpha * x)
HARD_SIGMOID(input: float; alpha: float = 0.2, beta: float = 0.5) | 4 | piecewise | table | \
NNADAPTER_HARD_SIGMOID; ONNX HardSigmoid-6: max(0, min(1, alpha * x + beta))
HARD_SWISH(input: float; alpha: float = 0.16666666666666666, beta: float = 0.5) | 5 | piecewise | table | \
NNAPI HARD_SWISH; ONNX HardSwish-14: x * hard_sigmoid(x)
LEAKY_RELU(input: float; alpha: float = 0.01) | 2 | elementwise | table | NNADAPTER_LEAKY_RELU; ONNX LeakyRelu-16
ELU(input: float; alpha: float = 1.0) | 4 | function | table | NNAPI ELU; ONNX Elu-6
SELU(input: float; alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) | 5 | \
function | table | ONNX Selu-6
NOT(input: bool) | 1 | elementwise | | NNAPI LOGICAL_NOT; ONNX Not-1
CLIP(input: number; min: float = -inf, max: float = inf) | 2 | elementwise | table | NNADAPTER_CLIP; ONNX Clip-13
ACOS(input: float) | 1 | function | | ONNX Acos-22
ACOSH(input: float) | 1 | function | | ONNX Acosh-22
ASIN(input: float) | 1 | function | | ONNX Asin-22
ASINH(input: float) | 1 | function | | ONNX Asinh-22
ATAN(input: float) | 1 | function | | ONNX Atan-22
ATANH(input: float) | 1 | function | | ONNX Atanh-22
COSH(input: float) | 1 | function | | ONNX Cosh-22
SINH(input: float) | 1 | function | | ONNX Sinh-22
TAN(input: float) | 1 | function | | ONNX Tan-22
RSQRT(input: float) | 1 | function | | NNAPI RSQRT; NNADAPTER_RSQRT: 1 / sqrt(x)
SQUARE(input: number) | 1 | elementwise | | NNADAPTER_SQUARE
SHRINK(input: number; bias: float = 0.0, lambd: float = 0.5) | 3 | elementwise | | \
ONNX Shrink-9: x + bias below -lambd, x - bias above lambd, 0 between
THRESHOLDED_RELU(input: float; alpha: float = 1.0) | 1 | elementwise | | \
ONNX ThresholdedRelu-22: x above alpha, 0 elsewhere
BITWISE_NOT(input: integer) | 1 | elementwise | | ONNX BitwiseNot-18
"""
"""Each line defines an operation by signature, steps per element, cost class, quantization and source."""

_BINARY = """\
MAX(x: number, y: number as x) | real | NNAPI MAXIMUM; ONNX Max-13
MIN(x: number, y: number as x) | real | NNAPI MINIMUM; ONNX Min-13
AND(x: bool, y: bool as x) | | NNAPI LOGICAL_AND; ONNX And-7
OR(x: bool, y: bool as x) | | NNAPI LOGICAL_OR; ONNX Or-7
XOR(x: bool, y: bool as x) | | NNADAPTER_XOR; ONNX Xor-7
EQUAL(x: any, y: any as x) | | NNAPI EQUAL; ONNX Equal-19
NOT_EQUAL(x: any, y: any as x) | | NNAPI NOT_EQUAL; NNADAPTER_NOT_EQUAL
GREATER(x: number, y: number as x) | | NNAPI GREATER; ONNX Greater-13
GREATER_EQUAL(x: number, y: number as x) | | NNAPI GREATER_EQUAL; ONNX GreaterOrEqual-16
LESS(x: number, y: number as x) | | NNAPI LESS; ONNX Less-13
LESS_EQUAL(x: number, y: number as x) | | NNAPI LESS_EQUAL; ONNX LessOrEqual-16
BITWISE_AND(x: integer, y: integer as x) | | ONNX BitwiseAnd-18
BITWISE_OR(x: integer, y: integer as x) | | ONNX BitwiseOr-18
BITWISE_XOR(x: integer, y: integer as x) | | ONNX BitwiseXor-18
"""
"""Each line defines an operation by signature, quantization and source. Comparisons return bool."""

_COMPARED = ("EQUAL", "NOT_EQUAL", "GREATER", "LESS")
_FUSABLE_BINARY = (
    ("ADD", "NNAPI ADD; ONNX Add-14"),
    ("SUB", "NNAPI SUB; ONNX Sub-14"),
    ("MUL", "NNAPI MUL; ONNX Mul-14"),
    ("DIV", "NNAPI DIV; ONNX Div-14: integers truncate toward zero"),
)

ROWS: tuple[Row, ...] = (
    *(
        row(signature, as_first, int(steps), source, cost=cost, quantization=quantization)
        for signature, steps, cost, quantization, source in read_table(_UNARY)
    ),
    *(
        row(signature, _compare if signature.startswith(_COMPARED) else _broadcast, 1, source, quantization=behavior)
        for signature, behavior, source in read_table(_BINARY)
    ),
    *(
        row(
            f"{type_}(x: number, y: number as x; {FUSED})",
            fusable(_broadcast),
            fused(PerElement(1)),
            source,
            quantization="real",
        )
        for type_, source in _FUSABLE_BINARY
    ),
    row(
        "GELU(input: float; approximate: string(none|tanh) = none)",
        as_first,
        lambda outputs, first, approximate: (9 if approximate == "tanh" else 5) * outputs[0].size,
        "NNADAPTER_GELU; ONNX Gelu-20: x * Phi(x), or its approximation by tanh",
        cost="function",
        quantization="table",
    ),
    row("ASSIGN(input)", lambda first: first, 0, "NNADAPTER_ASSIGN; ONNX Identity-21", cost="view"),
    row("CAST(input; to: dtype)", lambda first, to: like(first, dtype=DataType(to)), 0, "NNAPI CAST; ONNX Cast-21"),
    row("BIT_CAST(input; to: dtype)", _bit_cast, 0, "ONNX BitCast-26", cost="view"),
    row(
        "BIT_SHIFT(x: integer, y: integer as x; direction: string(left|right))",
        _broadcast,
        1,
        "ONNX BitShift-28: y negative or as large as the number of bits leaves the sign alone",
    ),
    row(
        "PRELU(input: float, slope: float as input)",
        _prelu,
        2,
        "NNAPI PRELU; ONNX PRelu-16: slope spreads to the input, never the other way",
    ),
    row(
        "POW(input: number, exponent: number)",
        _broadcast,
        1,
        "NNAPI POW; ONNX Pow-15: the result has the data type of input",
        cost="function",
    ),
    row("MOD(x: number, y: number as x; fmod: bool = False)", _modulo, 1, "ONNX Mod-13"),
    row(
        "FLOOR_DIV(x: number, y: number as x)",
        _broadcast,
        2,
        "NNADAPTER_FLOOR_DIV: the quotient rounded down, of integers too",
    ),
    row(
        "SUM(*inputs: float as inputs)",
        _broadcast,
        lambda outputs, *types: (len(types) - 1) * outputs[0].size,
        "NNADAPTER_SUM; ONNX Sum-13",
    ),
    row(
        "WHERE(condition: bool, x, y as x)",
        lambda condition, x, y: _broadcast(condition, x, y, dtype=x.dtype),
        0,
        "NNAPI SELECT; NNADAPTER_WHERE; ONNX Where-16",
    ),
    row(
        "CELU(input: float; alpha: float = 1.0)",
        _celu,
        6,
        "ONNX Celu-28: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))",
        cost="function",
    ),
    row("IS_NAN(input: float)", _is_special, 1, "ONNX IsNaN-20"),
    row(
        "IS_INF(input: float; detect_negative: bool = True, detect_positive: bool = True)",
        _is_special,
        1,
        "ONNX IsInf-20",
    ),
    row(
        "SWIGLU(gate: float, value: float as gate; alpha: float = 1.0)",
        _gated,
        6,
        "ONNX SwiGLU-28; Shazeer 2020: gate * sigmoid(alpha * gate) * value",
        cost="function",
    ),
)
