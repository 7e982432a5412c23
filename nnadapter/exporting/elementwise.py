"""Exporters of elementwise operations: functions, activations, arithmetic, comparisons, bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnadapter.exporting.writer import Exporter, NodeWriter, exporter
from nnadapter.ir.operand import DataType
from nnadapter.ir.operand_checks import integer_range

_PLAIN: Mapping[str, str] = {
    "ABS": "Abs",
    "ACOS": "Acos",
    "ACOSH": "Acosh",
    "ASIN": "Asin",
    "ASINH": "Asinh",
    "ASSIGN": "Identity",
    "ATAN": "Atan",
    "ATANH": "Atanh",
    "BITWISE_NOT": "BitwiseNot",
    "COS": "Cos",
    "COSH": "Cosh",
    "DETERMINANT": "Det",
    "ERF": "Erf",
    "EXP": "Exp",
    "IS_NAN": "IsNaN",
    "LOG": "Log",
    "MISH": "Mish",
    "NEG": "Neg",
    "NOT": "Not",
    "RECIPROCAL": "Reciprocal",
    "RELU": "Relu",
    "SIGMOID": "Sigmoid",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SINH": "Sinh",
    "SOFTPLUS": "Softplus",
    "SOFTSIGN": "Softsign",
    "SQRT": "Sqrt",
    "STORAGE_CAST": "Identity",
    "TAN": "Tan",
    "TANH": "Tanh",
}
"""Operations of one operand that are one op without attributes."""
_PARAMETRIC: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ELU": ("Elu", {"alpha": "alpha"}),
    "GELU": ("Gelu", {"approximate": "approximate"}),
    "HARDMAX": ("Hardmax", {"axis": "axis"}),
    "HARD_SIGMOID": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "IS_INF": ("IsInf", {"detect_negative": "detect_negative", "detect_positive": "detect_positive"}),
    "LEAKY_RELU": ("LeakyRelu", {"alpha": "alpha"}),
    "LOG_SOFTMAX": ("LogSoftmax", {"axis": "axis"}),
    "LP_NORMALIZATION": ("LpNormalization", {"axis": "axis", "p": "p"}),
    "SELU": ("Selu", {"alpha": "alpha", "gamma": "gamma"}),
    "SHRINK": ("Shrink", {"bias": "bias", "lambd": "lambd"}),
    "SOFTMAX": ("Softmax", {"axis": "axis"}),
    "THRESHOLDED_RELU": ("ThresholdedRelu", {"alpha": "alpha"}),
}
"""Those that are one op with attributes: ONNX's name of each, and the operation's."""


def _plain(op_type: str) -> Exporter:
    return lambda write: write.node(op_type, write.inputs[0])


def _parametric(op_type: str, names: Mapping[str, str]) -> Exporter:
    def export(write: NodeWriter) -> str:
        attributes = {name: write.operation.attributes[own] for name, own in names.items()}
        return write.node(op_type, write.inputs[0], **attributes)  # type: ignore[arg-type]

    return export


for _activation_type, _activation_op in _PLAIN.items():
    exporter(_activation_type)(_plain(_activation_op))
for _activation_type, (_activation_op, _names) in _PARAMETRIC.items():
    exporter(_activation_type)(_parametric(_activation_op, _names))


def clip(write: NodeWriter, x: str, low: float, high: float) -> str:
    """Clip, with bounds of an integer kept within its range. Source: ONNX Clip-13."""
    dtype = write.dtype_of(x) or DataType.FLOAT32
    bounds = [_bound(write, limit, dtype) if np.isfinite(limit) else "" for limit in (low, high)]
    return write.node("Clip", x, *bounds)


def _bound(write: NodeWriter, limit: float, dtype: DataType) -> str:
    if dtype.is_floating:
        return write.number(limit, dtype)
    smallest, largest = integer_range(dtype)
    return write.number(min(max(int(limit), smallest), largest), dtype)


def _scaled(write: NodeWriter, x: str, factor: float) -> str:
    dtype = write.dtype_of(x) or DataType.FLOAT32
    return x if factor == 1 else write.node("Mul", x, write.number(factor, dtype))


def swish(write: NodeWriter, x: str, alpha: float = 1.0) -> str:
    """X * sigmoid(alpha * x): in two ops, since ONNX Runtime has no kernel for Swish-24."""
    return write.node("Mul", x, write.node("Sigmoid", _scaled(write, x, alpha)))


def hard_swish(write: NodeWriter, x: str, alpha: float, beta: float) -> str:
    """HardSwish where the numbers are ONNX's own, else two ops. Source: ONNX HardSwish-14."""
    if (np.float32(alpha), beta) == (np.float32(1 / 6), 0.5):
        return write.node("HardSwish", x)
    return write.node("Mul", x, write.node("HardSigmoid", x, alpha=alpha, beta=beta))


FUSED: Mapping[str, Callable[..., str]] = {
    "relu": lambda write, x: write.node("Relu", x),
    "clip": clip,
    "sigmoid": lambda write, x: write.node("Sigmoid", x),
    "hard_sigmoid": lambda write, x, alpha, beta: write.node("HardSigmoid", x, alpha=alpha, beta=beta),
    "hard_swish": hard_swish,
    "tanh": lambda write, x: write.node("Tanh", x),
    "leaky_relu": lambda write, x, alpha: write.node("LeakyRelu", x, alpha=alpha),
    "gelu": lambda write, x: write.node("Gelu", x),
    "gelu_tanh": lambda write, x: write.node("Gelu", x, approximate="tanh"),
    "swish": swish,
}
"""What `fuse_code` names, called with `fuse_parameters`."""


@exporter("CEIL", "FLOOR", "ROUND")
def export_rounding(write: NodeWriter) -> str:
    """CEIL, FLOOR and ROUND; integers are what they are. Source: ONNX Ceil-13, Floor-13, Round-22."""
    op_type = write.operation.type.capitalize() if write.type.dtype.is_floating else "Identity"
    return write.node(op_type, write.inputs[0])


@exporter("CLIP")
def export_clip(write: NodeWriter) -> str:
    """CLIP; a bound that is infinite is left out. Source: ONNX Clip-13."""
    return clip(write, write.inputs[0], write.operation.attributes["min"], write.operation.attributes["max"])  # type: ignore[arg-type]


@exporter("SWISH")
def export_swish(write: NodeWriter) -> str:
    """SWISH: see `swish`."""
    return swish(write, write.inputs[0], write.operation.alpha)


@exporter("HARD_SWISH")
def export_hard_swish(write: NodeWriter) -> str:
    """HARD_SWISH: see `hard_swish`."""
    return hard_swish(write, write.inputs[0], write.operation.alpha, write.operation.beta)


@exporter("CAST")
def export_cast(write: NodeWriter) -> str:
    """CAST. Source: ONNX Cast-24."""
    return write.node("Cast", write.inputs[0], to=DataType(write.operation.to))


@exporter("BIT_CAST")
def export_bit_cast(write: NodeWriter) -> str:
    """BIT_CAST. Source: ONNX BitCast-26."""
    return write.node("BitCast", write.inputs[0], to=DataType(write.operation.to))


@exporter("RSQRT")
def export_rsqrt(write: NodeWriter) -> str:
    """RSQRT, for which ONNX has no op: the reciprocal of the root."""
    return write.node("Reciprocal", write.node("Sqrt", write.inputs[0]))


@exporter("SQUARE")
def export_square(write: NodeWriter) -> str:
    """SQUARE, for which ONNX has no op: a product with itself."""
    return write.node("Mul", write.inputs[0], write.inputs[0])


@exporter("CELU")
def export_celu(write: NodeWriter) -> str:
    """CELU by Elu, which has more data types than Celu of opset 24: alpha * elu(x / alpha).

    For an alpha below 0, of which Elu would see the other half, as CELU is defined. Source: ONNX Celu-28.
    """
    x, dtype = write.inputs[0], write.type.dtype
    alpha = write.number(write.operation.alpha, dtype)
    if write.operation.alpha > 0:
        return write.node("Mul", write.node("Elu", write.node("Div", x, alpha)), alpha)
    zero, one = (write.number(number, dtype) for number in (0, 1))
    raised = write.node("Sub", write.node("Exp", write.node("Div", x, alpha)), one)
    below = write.node("Min", write.node("Mul", raised, alpha), zero)
    return write.node("Add", write.node("Max", x, zero), below)


@exporter("SWIGLU")
def export_swiglu(write: NodeWriter) -> str:
    """SWIGLU spelled out, since ONNX Runtime has no kernel for SwiGLU-28: gate * sigmoid(alpha * gate) * value."""
    gate, value = write.inputs
    return write.node("Mul", swish(write, gate, write.operation.alpha), value)


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
