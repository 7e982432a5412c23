"""Products, determinants and triangles of matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _fully_connected(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _mat_mul(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Any:
    return np.matmul(x.swapaxes(-1, -2) if transpose_x else x, y.swapaxes(-1, -2) if transpose_y else y)


def _integers(packed: Array, bits: int) -> Array:
    """The integers in the bytes of the last axis, lowest bits first."""
    count = packed.shape[-1] * 8 // bits
    each = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*packed.shape[:-1], count, bits)
    return each @ (1 << np.arange(bits))


def _mat_mul_n_bits(
    x: Array,
    weight: Array,
    scale: Array,
    zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    bits: int,
    block_size: int,
) -> Array:
    integers = _integers(weight, bits)
    if zero_point is None:
        points: Array = np.full(scale.shape, 1 << (bits - 1))
    else:
        points = _integers(zero_point, bits)[:, : scale.shape[1]] if zero_point.dtype == np.uint8 else zero_point
    reals = (integers - points[..., None]) * scale[..., None]
    return _fully_connected(x, reals.reshape(len(weight), prod(reals.shape[1:]))[:, : x.shape[-1]], bias)


_EXPANDED = 4


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


def _einsum(*inputs: Array, equation: str) -> Any:
    """Numpy's, which has no integers of 4 bits."""
    return np.einsum(equation, *(x.astype(np.int64) if x.dtype.name in ("int4", "uint4") else x for x in inputs))


MATRIX: Mapping[str, Callable[..., Any]] = {
    "FULLY_CONNECTED": _fully_connected,
    "MAT_MUL": _mat_mul,
    "MAT_MUL_N_BITS": _mat_mul_n_bits,
    "TRILU": lambda x, upper, k: np.triu(x, k) if upper else np.tril(x, k),
    "DETERMINANT": _determinant,
    "EINSUM": _einsum,
    "EYE_LIKE": lambda x, to, k: np.eye(x.shape[0], x.shape[1], int(k)),
}
"""By operation."""
