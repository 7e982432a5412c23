"""Functions of the interpreter that go beyond the everyday: bits, thresholds, triangles, equations, tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _is_inf(x: Array, detect_negative: bool, detect_positive: bool) -> Any:
    return ((x == np.inf) & detect_positive) | ((x == -np.inf) & detect_negative)


def _shift(x: Array, y: Array, direction: str) -> Array:
    """With Python's integers, which have no end, and then the low bits alone."""
    bits = 8 * x.dtype.itemsize
    shifted = []
    for number, count in np.broadcast(x, y):
        number, count = int(number), int(count)
        beyond = not 0 <= count < bits
        sign_fill = -1 if number < 0 and direction == "right" else 0
        if beyond:
            shifted.append(sign_fill)
        else:
            shifted.append(number << count if direction == "left" else number >> count)
    low = np.array([number % 2**bits for number in shifted], _BITS[x.dtype.itemsize])
    return low.view(x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


def bit_cast(x: Array, to: Any) -> Any:
    """The bytes of `x` read as another type; no other byte than 0 and 1 is a truth value."""
    if to == np.bool_:
        return x != 0
    return np.frombuffer(x.tobytes(), to).reshape(x.shape)


def _cum_prod(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        ones = np.ones_like(np.take(x, [0], axis))
        x = np.concatenate([ones, np.delete(x, -1, axis)], axis)
    total = np.cumprod(x, axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _hardmax(x: Array, axis: int) -> Array:
    rows = np.moveaxis(x, axis, -1)
    chosen = np.eye(rows.shape[-1])[np.argmax(rows, -1)]
    return np.moveaxis(chosen, -1, axis)


_EXPANDED = 4
"""Rows up to which a determinant is expanded, which takes as many steps as there are permutations."""


def _determinant(x: Array) -> Array:
    """By Laplace's expansion along the first row; larger ones by elimination."""
    if x.shape[-1] == 0:
        return np.ones(x.shape[:-2])
    if x.shape[-1] > _EXPANDED:
        return np.asarray(np.linalg.det(x.astype(np.float64)))
    total = np.zeros(x.shape[:-2])
    for column in range(x.shape[-1]):
        minor = np.delete(x[..., 1:, :], column, -1)
        total = total + (-1) ** column * x[..., 0, column] * _determinant(minor)
    return total


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
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
    "BITWISE_AND": np.bitwise_and,
    "BITWISE_OR": np.bitwise_or,
    "BITWISE_XOR": np.bitwise_xor,
    "BITWISE_NOT": np.invert,
    "BIT_SHIFT": _shift,
    "BIT_CAST": lambda x, to: bit_cast(x, np.dtype(to)),
    "CUM_PROD": _cum_prod,
    "HARDMAX": _hardmax,
    "TRILU": lambda x, upper, k: np.triu(x, k) if upper else np.tril(x, k),
    "DETERMINANT": _determinant,
    "EINSUM": lambda *inputs, equation: np.einsum(equation, *inputs),
    "FILL": lambda value, shape: np.full(shape, value),
    "RANGE": lambda start, delta, count: np.array([start + i * delta for i in range(count)], start.dtype),
    "EYE_LIKE": lambda x, to, k: np.eye(x.shape[0], x.shape[1], int(k)),
}
"""One function per operation."""
