"""Elementwise operations, bit operations, quantization and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    Function,
    clip,
    computes,
    converted,
    direct,
    gelu,
    moves,
    shared,
    swish,
    to_integers,
    to_reals,
)
from nnadapter.ir.named_operation import NamedOperation


def _shift(x: Any, y: Any, direction: str) -> Any:
    """Shift bits as XLA does: a negative or too large count leaves only 0 or sign bits."""
    x, y = jnp.broadcast_arrays(x, y)
    if direction == "left":
        return jax.lax.shift_left(x, y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return jax.lax.shift_right_arithmetic(x, y) if signed else jax.lax.shift_right_logical(x, y)


_BITWISE = shared("BITWISE_AND BITWISE_OR BITWISE_XOR BITWISE_NOT") | {"BIT_SHIFT": _shift}
lower_bits = direct(_BITWISE, moves, types=INTEGERS, layouts=LAYOUTS)


@lowers("BIT_CAST", types=HELD, layouts=LAYOUTS, limits="bytes that become bool are true unless 0")
def lower_bit_cast(operation: NamedOperation) -> Computes:
    """Lower BIT_CAST."""
    dtype = operation.output.type.dtype.array_type

    def cast(x: Any, to: str) -> Any:
        bytes_ = x.astype(jnp.uint8) if x.dtype.kind == "b" else x
        return bytes_ != 0 if dtype.kind == "b" else jax.lax.bitcast_convert_type(bytes_, dtype)

    return moves(operation, cast)


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x) if _is_float(x) else x


def _divide(x: Any, y: Any) -> Any:
    return x / y if _is_float(x) else _zero_by_zero(jax.lax.div(*jnp.broadcast_arrays(x, y)), y)  # rounds toward zero


def _floor_divide(x: Any, y: Any) -> Any:
    return jnp.floor_divide(x, y) if _is_float(x) else _zero_by_zero(jnp.floor_divide(x, y), y)


def _zero_by_zero(quotient: Any, divisor: Any) -> Any:
    return jnp.where(divisor == 0, 0, quotient)


def _power(x: Any, exponent: Any) -> Any:
    if _is_float(x):
        return jnp.power(x, exponent.astype(x.dtype))
    reals = jnp.power(x.astype(jnp.float64), exponent.astype(jnp.float64))
    if _is_float(exponent):
        return reals
    return jnp.where(exponent < 0, reals.astype(x.dtype), _whole_power(x, exponent))


def _whole_power(x: Any, exponent: Any) -> Any:
    """Compute a power by repeated squaring, because `jnp.power` reads only the 6 lowest bits of the exponent."""

    def next_bit(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        product, square, exponent = state
        return jnp.where(exponent & 1 == 1, product * square, product), square * square, exponent >> 1

    x, exponent = jnp.broadcast_arrays(x, exponent)
    bits = 8 * exponent.dtype.itemsize
    return jax.lax.fori_loop(0, bits, next_bit, (jnp.ones_like(x), x, exponent))[0]


def _shrink(x: Any, bias: float, lambd: float) -> Any:
    reals = x if _is_float(x) else x.astype(jnp.float64)
    return jnp.where(reals < -lambd, reals + bias, jnp.where(reals > lambd, reals - bias, 0))


_FLOATS = """
EXP LOG SQRT RECIPROCAL SIN COS TAN TANH ACOS ACOSH ASIN ASINH ATAN ATANH COSH SINH SOFTPLUS SOFTSIGN MISH HARD_SIGMOID
HARD_SWISH LEAKY_RELU ELU SELU CELU THRESHOLDED_RELU PRELU SUM IS_NAN IS_INF
"""
FUNCTIONS_OF_FLOATS: Mapping[str, Function] = shared(_FLOATS) | {
    "RSQRT": jax.lax.rsqrt,
    "ERF": jax.lax.erf,
    "SIGMOID": jax.nn.sigmoid,
    "SWISH": swish,
    "GELU": gelu,
    "SWIGLU": lambda gate, value, alpha: gate * jax.nn.sigmoid(alpha * gate) * value,
}

_NUMBERS = "ABS NEG SIGN RELU SQUARE ADD SUB MUL MOD MAX MIN GREATER GREATER_EQUAL LESS LESS_EQUAL"
FUNCTIONS_OF_NUMBERS: Mapping[str, Function] = shared(_NUMBERS) | {
    "FLOOR": _rounding(jnp.floor),
    "CEIL": _rounding(jnp.ceil),
    "ROUND": _rounding(jnp.rint),
    "CLIP": clip,
    "SHRINK": _shrink,
    "DIV": _divide,
    "FLOOR_DIV": _floor_divide,
    "POW": _power,
}

FUSED = ("none", *ACTIVATIONS)


lower_floats = direct(
    FUNCTIONS_OF_FLOATS, computes, types=(*ALL_FLOATS, *COMPUTED), results="bool", quantized=True, layouts=LAYOUTS
)
lower_numbers = direct(
    FUNCTIONS_OF_NUMBERS, computes, types=ALL_NUMBERS, results="bool", fuse_codes=FUSED, quantized=True, layouts=LAYOUTS
)
lower_booleans = direct(shared("NOT AND OR XOR"), moves, types="bool", layouts=LAYOUTS)
lower_elements = direct(shared("EQUAL NOT_EQUAL WHERE"), moves, types=HELD, layouts=LAYOUTS)
lower_assign = direct(shared("ASSIGN"), moves, types=MOVED, layouts=LAYOUTS)


@lowers("CAST", types=MOVED, layouts=LAYOUTS)
def lower_cast(operation: NamedOperation) -> Computes:
    """Lower CAST."""
    dtype = operation.output.type.dtype.array_type
    return moves(operation, lambda x, to: converted(x, dtype))


@lowers("QUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_quantize(operation: NamedOperation) -> Computes:
    """Lower QUANTIZE."""
    type_ = operation.output.type
    return lambda x: to_integers(x, type_)


@lowers("DEQUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_dequantize(operation: NamedOperation) -> Computes:
    """Lower DEQUANTIZE."""
    type_, dtype = operation.inputs[0].type, operation.output.type.dtype.array_type  # type: ignore[union-attr]
    return lambda x: to_reals(x, type_).astype(dtype)


@lowers("STORAGE_CAST", types=QUANTIZED, quantized=True, layouts=LAYOUTS)
def lower_storage_cast(operation: NamedOperation) -> Computes:
    """Lower STORAGE_CAST."""
    dtype: Any = operation.output.type.dtype.array_type
    return lambda x: x.astype(dtype)
