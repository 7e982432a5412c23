"""Elementwise operations, bit operations, quantization and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.numerics import (
    ACTIVATIONS,
    ALL_FLOATS,
    ALL_NUMBERS,
    COMPUTED,
    HELD,
    INTEGERS,
    LAYOUTS,
    MOVED,
    QUANTIZED,
    clip,
    computes,
    converted,
    elu,
    gelu,
    hard_sigmoid,
    leaky_relu,
    moves,
    softplus,
    softsign,
    swish,
    to_integers,
    to_reals,
)
from nnadapter.ir.named_operation import NamedOperation


def _shift(x: Any, y: Any, direction: str) -> Any:
    """XLA says what comes of counts that are too large or negative: nothing, or the sign."""
    x, y = jnp.broadcast_arrays(x, y)
    if direction == "left":
        return jax.lax.shift_left(x, y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return jax.lax.shift_right_arithmetic(x, y) if signed else jax.lax.shift_right_logical(x, y)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "BITWISE_AND": jnp.bitwise_and,
    "BITWISE_OR": jnp.bitwise_or,
    "BITWISE_XOR": jnp.bitwise_xor,
    "BITWISE_NOT": jnp.bitwise_not,
    "BIT_SHIFT": _shift,
}


@lowers(*FUNCTIONS, types=INTEGERS, layouts=LAYOUTS)
def lower_bits(operation: NamedOperation) -> Computes:
    """Bit by bit."""
    return moves(operation, FUNCTIONS[operation.type])


@lowers("BIT_CAST", types=HELD, layouts=LAYOUTS, limits="bytes that become bool are true unless 0")
def lower_bit_cast(operation: NamedOperation) -> Computes:
    """The same bytes read as another type."""
    made = operation.output.type.dtype.array_type

    def cast(x: Any, to: str) -> Any:
        bytes_ = x.astype(jnp.uint8) if x.dtype.kind == "b" else x
        return bytes_ != 0 if made.kind == "b" else jax.lax.bitcast_convert_type(bytes_, made)

    return moves(operation, cast)


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Whole numbers stay as they are."""
    return lambda x: function(x) if _is_float(x) else x


def _divide(x: Any, y: Any) -> Any:
    return x / y if _is_float(x) else _zero_by_zero(jax.lax.div(*jnp.broadcast_arrays(x, y)), y)  # it rounds to zero


def _floor_divide(x: Any, y: Any) -> Any:
    return jnp.floor_divide(x, y) if _is_float(x) else _zero_by_zero(jnp.floor_divide(x, y), y)


def _zero_by_zero(quotient: Any, divisor: Any) -> Any:
    """What integers give that are divided by 0, where XLA gives something else on each kind of device."""
    return jnp.where(divisor == 0, 0, quotient)


def _power(x: Any, exponent: Any) -> Any:
    if _is_float(x):
        return jnp.power(x, exponent.astype(x.dtype))
    reals = jnp.power(x.astype(jnp.float64), exponent.astype(jnp.float64))
    if _is_float(exponent):
        return reals
    return jnp.where(exponent < 0, reals.astype(x.dtype), _whole_power(x, exponent))


def _whole_power(x: Any, exponent: Any) -> Any:
    """By squaring, as far as the exponent has bits: `jnp.power` looks at the lowest 6."""

    def next_bit(_: Any, held: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        product, square, left = held
        return jnp.where(left & 1 == 1, product * square, product), square * square, left >> 1

    x, exponent = jnp.broadcast_arrays(x, exponent)
    bits = 8 * exponent.dtype.itemsize
    return jax.lax.fori_loop(0, bits, next_bit, (jnp.ones_like(x), x, exponent))[0]


def _modulo(x: Any, y: Any, fmod: bool) -> Any:
    return jnp.fmod(x, y) if fmod else jnp.mod(x, y)


def _celu(x: Any, alpha: float) -> Any:
    return jnp.maximum(0, x) + jnp.minimum(0, alpha * jnp.expm1(x / alpha))


def _shrink(x: Any, bias: float, lambd: float) -> Any:
    reals = x if _is_float(x) else x.astype(jnp.float64)
    return jnp.where(reals < -lambd, reals + bias, jnp.where(reals > lambd, reals - bias, 0))


def _is_infinite(x: Any, detect_negative: bool, detect_positive: bool) -> Any:
    return ((x == jnp.inf) & detect_positive) | ((x == -jnp.inf) & detect_negative)


def _selu(x: Any, alpha: float, gamma: float) -> Any:
    return gamma * jnp.where(x <= 0, alpha * jnp.expm1(x), x)


FUNCTIONS_OF_FLOATS: Mapping[str, Callable[..., Any]] = {
    "EXP": jnp.exp,
    "LOG": jnp.log,
    "SQRT": jnp.sqrt,
    "RSQRT": jax.lax.rsqrt,
    "RECIPROCAL": lambda x: 1 / x,
    "ERF": jax.lax.erf,
    "SIN": jnp.sin,
    "COS": jnp.cos,
    "TAN": jnp.tan,
    "TANH": jnp.tanh,
    "ACOS": jnp.arccos,
    "ACOSH": jnp.arccosh,
    "ASIN": jnp.arcsin,
    "ASINH": jnp.arcsinh,
    "ATAN": jnp.arctan,
    "ATANH": jnp.arctanh,
    "COSH": jnp.cosh,
    "SINH": jnp.sinh,
    "SIGMOID": jax.nn.sigmoid,
    "SOFTPLUS": softplus,
    "SOFTSIGN": softsign,
    "MISH": lambda x: x * jnp.tanh(softplus(x)),
    "SWISH": swish,
    "GELU": gelu,
    "HARD_SIGMOID": hard_sigmoid,
    "HARD_SWISH": lambda x, alpha, beta: x * hard_sigmoid(x, alpha, beta),
    "LEAKY_RELU": leaky_relu,
    "ELU": elu,
    "SELU": _selu,
    "CELU": _celu,
    "THRESHOLDED_RELU": lambda x, alpha: jnp.where(x > alpha, x, 0),
    "PRELU": lambda x, slope: jnp.where(x < 0, slope * x, x),
    "SUM": lambda *inputs: reduce(jnp.add, inputs),
    "SWIGLU": lambda gate, value, alpha: gate * jax.nn.sigmoid(alpha * gate) * value,
    "IS_NAN": jnp.isnan,
    "IS_INF": _is_infinite,
}

FUNCTIONS_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "ABS": jnp.abs,
    "NEG": jnp.negative,
    "SIGN": jnp.sign,
    "FLOOR": _rounding(jnp.floor),
    "CEIL": _rounding(jnp.ceil),
    "ROUND": _rounding(jnp.rint),
    "RELU": lambda x: jnp.maximum(x, 0),
    "SQUARE": jnp.square,
    "CLIP": clip,
    "SHRINK": _shrink,
    "ADD": jnp.add,
    "SUB": jnp.subtract,
    "MUL": jnp.multiply,
    "DIV": _divide,
    "FLOOR_DIV": _floor_divide,
    "POW": _power,
    "MOD": _modulo,
    "MAX": jnp.maximum,
    "MIN": jnp.minimum,
    "GREATER": jnp.greater,
    "GREATER_EQUAL": jnp.greater_equal,
    "LESS": jnp.less,
    "LESS_EQUAL": jnp.less_equal,
}

FUNCTIONS_OF_BOOLEANS: Mapping[str, Callable[..., Any]] = {
    "NOT": jnp.logical_not,
    "AND": jnp.logical_and,
    "OR": jnp.logical_or,
    "XOR": jnp.logical_xor,
}

FUSED = ("none", *ACTIVATIONS)
"""Activations that are applied to results."""


@lowers(*FUNCTIONS_OF_FLOATS, types=(*ALL_FLOATS, *COMPUTED), results="bool", quantized=True, layouts=LAYOUTS)
def lower_floats(operation: NamedOperation) -> Computes:
    """Functions that are of floats alone."""
    return computes(operation, FUNCTIONS_OF_FLOATS[operation.type])


@lowers(*FUNCTIONS_OF_NUMBERS, types=ALL_NUMBERS, results="bool", fuse_codes=FUSED, quantized=True, layouts=LAYOUTS)
def lower_numbers(operation: NamedOperation) -> Computes:
    """Functions of any numbers."""
    return computes(operation, FUNCTIONS_OF_NUMBERS[operation.type])


@lowers(*FUNCTIONS_OF_BOOLEANS, types="bool", layouts=LAYOUTS)
def lower_booleans(operation: NamedOperation) -> Computes:
    """Functions of truth values."""
    return moves(operation, FUNCTIONS_OF_BOOLEANS[operation.type])


@lowers("EQUAL", "NOT_EQUAL", types=HELD, layouts=LAYOUTS)
def lower_equality(operation: NamedOperation) -> Computes:
    """Whether elements are the same."""
    return moves(operation, jnp.equal if operation.type == "EQUAL" else jnp.not_equal)


@lowers("WHERE", types=HELD, layouts=LAYOUTS)
def lower_where(operation: NamedOperation) -> Computes:
    """One of two, element by element."""
    return moves(operation, jnp.where)


@lowers("ASSIGN", types=MOVED, layouts=LAYOUTS)
def lower_assign(operation: NamedOperation) -> Computes:
    """The same."""
    return moves(operation, lambda x: x)


@lowers("CAST", types=MOVED, layouts=LAYOUTS)
def lower_cast(operation: NamedOperation) -> Computes:
    """Another data type."""
    made = operation.output.type.dtype.array_type
    return moves(operation, lambda x, to: converted(x, made))


@lowers("QUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_quantize(operation: NamedOperation) -> Computes:
    """Reals as integers."""
    type_ = operation.output.type
    return lambda x: to_integers(x, type_)


@lowers("DEQUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_dequantize(operation: NamedOperation) -> Computes:
    """Integers as the reals that they stand for."""
    type_, made = operation.inputs[0].type, operation.output.type.dtype.array_type  # type: ignore[union-attr]
    return lambda x: to_reals(x, type_).astype(made)


@lowers("STORAGE_CAST", types=QUANTIZED, quantized=True, layouts=LAYOUTS)
def lower_storage_cast(operation: NamedOperation) -> Computes:
    """The same integers, seen otherwise."""
    made: Any = operation.output.type.dtype.array_type
    return lambda x: x.astype(made)
