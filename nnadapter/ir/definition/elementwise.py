"""What operations compute element by element, and the activations that others fuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf as scalar_erf
from typing import Any

import ml_dtypes  # teaches numpy.dtype the names bfloat16, int4 and float8_…
import numpy as np

from nnadapter.ir.operand import Array, DataType


def cast(value: Array, dtype: DataType) -> Array:
    """Convert to another type."""
    value, target = np.asarray(value), np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype.value.startswith("float8"):  # ONNX's saturate=1: what is too large becomes the largest number
            limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
            value = np.clip(value, -limit, limit)
        return np.asarray(value.astype(target))


def _to(x: Array, to: str) -> Array:
    target = DataType(to)
    return x != 0 if target is DataType.BOOL else cast(x, target)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _erf(x: Array) -> Any:
    return np.vectorize(scalar_erf, otypes=[np.float64])(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Array, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Any:
    """A line that ends at 0 and 1."""
    return np.clip(alpha * x + beta, 0, 1)


def elu(x: Array, alpha: float) -> Array:
    """`x`, or an exponential below 0."""
    return np.where(x < 0, alpha * np.expm1(x), x)


def softsign(x: Array) -> Any:
    """`x` over its distance from -1 or 1."""
    return x / (1 + np.abs(x))


def leaky_relu(x: Array, alpha: float) -> Array:
    """`x`, or a share of it below 0."""
    return np.where(x < 0, alpha * x, x)


def _clip(x: Array, min: float, max: float) -> Any:  # noqa: A002  the attributes' names
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        lowest, highest = (int(np.clip(value, float(limits.min), float(limits.max))) for value in (min, max))
        return np.minimum(np.maximum(x, np.array(_bounded(lowest, limits), x.dtype)), _bounded(highest, limits))
    return np.minimum(np.maximum(x, min), max)


def _bounded(value: int, limits: Any) -> int:
    return int(min(max(value, int(limits.min)), int(limits.max)))


def _div(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return x / y
    quotient = x // y  # rounds down; ONNX rounds to zero
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)


def _pow(x: Array, exponent: Array) -> Any:
    if x.dtype.kind in "iu" and exponent.dtype.kind in "iu" and np.all(exponent >= 0):
        return x ** exponent.astype(x.dtype)
    return np.power(x.astype(np.float64), exponent.astype(np.float64))


def _mod(x: Array, y: Array, fmod: bool) -> Array:
    return np.fmod(x, y) if fmod else np.mod(x, y)


def _sum(*inputs: Array) -> Array:
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    return total


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _is_inf(x: Array, detect_negative: bool, detect_positive: bool) -> Any:
    return ((x == np.inf) & detect_positive) | ((x == -np.inf) & detect_negative)


ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": _clip,
    "sigmoid": sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": lambda x, alpha, beta: x * hard_sigmoid(x, alpha, beta),
    "tanh": np.tanh,
    "leaky_relu": leaky_relu,
    "gelu": _gelu,
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
    "swish": lambda x: x * sigmoid(x),
}
"""What `fuse_code` names, called with `fuse_parameters`."""


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "ABS": np.abs,
    "SIGN": np.sign,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "EXP": np.exp,
    "LOG": np.log,
    "SQRT": np.sqrt,
    "SIN": np.sin,
    "COS": np.cos,
    "TANH": np.tanh,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "NEG": np.negative,
    "ROUND": np.rint,
    "RECIPROCAL": lambda x: 1 / x,
    "ERF": _erf,
    "SIGMOID": sigmoid,
    "SOFTPLUS": softplus,
    "SOFTSIGN": softsign,
    "MISH": lambda x: x * np.tanh(softplus(x)),
    "RELU": lambda x: np.maximum(x, 0),
    "SWISH": lambda x, alpha: x * sigmoid(alpha * x),
    "GELU": _gelu,
    "HARD_SIGMOID": hard_sigmoid,
    "HARD_SWISH": lambda x, alpha, beta: x * hard_sigmoid(x, alpha, beta),
    "LEAKY_RELU": leaky_relu,
    "ELU": elu,
    "SELU": lambda x, alpha, gamma: gamma * np.where(x <= 0, alpha * np.expm1(x), x),
    "CLIP": _clip,
    "NOT": np.logical_not,
    "CAST": _to,
    "ASSIGN": lambda x: x,
    "PRELU": lambda x, slope: np.where(x < 0, slope * x, x),
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": _div,
    "POW": _pow,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "MOD": _mod,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
    "SUM": _sum,
    "WHERE": np.where,
    "ACOS": np.arccos,
    "ACOSH": np.arccosh,
    "ASIN": np.arcsin,
    "ASINH": np.arcsinh,
    "ATAN": np.arctan,
    "ATANH": np.arctanh,
    "COSH": np.cosh,
    "SINH": np.sinh,
    "TAN": np.tan,
    "RSQRT": lambda x: x**-0.5,
    "SQUARE": lambda x: x * x,
    "NOT_EQUAL": lambda x, y: ~np.equal(x, y),
    "FLOOR_DIV": lambda x, y: x // y,
    "CELU": _celu,
    "SHRINK": _shrink,
    "THRESHOLDED_RELU": lambda x, alpha: np.where(x > alpha, x, 0),
    "IS_NAN": np.isnan,
    "IS_INF": _is_inf,
    "SWIGLU": lambda gate, value, alpha: gate / (1 + np.exp(-alpha * gate)) * value,
}
"""By operation."""
