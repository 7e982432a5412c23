"""Distances between tensors: cosine similarity, SQNR in dB, and Euclidean distance."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.records import dataclass


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of numbers a from their reference r, with |v| the square root of the sum of squares.

    - Elements that are NaN, or the same infinity, on both sides are left out.
    - Any other NaN or infinity makes the distance infinite: cosine 0, SQNR -inf dB, the others inf.
    - A zero reference has cosine 1 and SQNR inf dB if a is zero too, otherwise 0 and -inf dB.
    """

    cosine: float
    """Sum of a * r, divided by |a| |r|; 0 if only one norm is 0."""
    sqnr_db: float
    """Signal-to-quantization-noise ratio, 20 log10(|r| / |a - r|)."""
    euclidean: float
    """|a - r|."""
    relative: float
    """|a - r| / |r|; 0 for equal numbers, inf if only r is zero."""


_INFINITE = (0.0, -inf, inf, inf)
INFINITE = Distance(*_INFINITE)


def distance(actual: Array | Sequence[Array], reference: Array | Sequence[Array]) -> Distance:
    """Return the distance of arrays, concatenated to one float64 vector. Raises ValueError for unequal shapes."""
    a, r = _vector(actual), _vector(reference)
    if [np.shape(array) for array in a] != [np.shape(array) for array in r]:
        raise ValueError(f"shapes differ: {[*map(np.shape, a)]} and {[*map(np.shape, r)]}, expected equal shapes")
    rows = (np.concatenate([_floats(array).reshape(1, -1) for array in arrays], axis=1) for arrays in (a, r))
    return _of_rows(*rows)[0]


def distance_per_item(actual: Array, reference: Array) -> tuple[Distance, ...]:
    """Return one distance for each item along the first axis. Raises ValueError for unequal shapes."""
    if np.shape(actual) != np.shape(reference):
        raise ValueError(f"shapes differ: {np.shape(actual)} and {np.shape(reference)}, expected equal shapes")
    items = len(actual)
    return tuple(_of_rows(*(_floats(array).reshape(items, -1) for array in (actual, reference)))) if items else ()


def _vector(arrays: Array | Sequence[Array]) -> Sequence[Array]:
    return arrays if isinstance(arrays, (list, tuple)) else [np.asarray(arrays)]


def _floats(array: Array) -> Array:
    numbers = np.ascontiguousarray(array)
    if numbers.dtype.kind == "c":
        numbers = numbers.astype(np.complex128).view(np.float64)
    return numbers.astype(np.float64)


def _of_rows(actual: Array, reference: Array) -> list[Distance]:
    with np.errstate(all="ignore"):
        same = (actual == reference) | (np.isnan(actual) & np.isnan(reference))
        finite = np.isfinite(actual) & np.isfinite(reference)
        a, r = np.where(finite, actual, 0.0), np.where(finite, reference, 0.0)
        error, size_a, size_r = _norm(a - r), _norm(a), _norm(r)
        relative = np.where(error == 0, 0.0, error / size_r)
        cosine = np.clip(np.sum((a / size_a[:, None]) * (r / size_r[:, None]), axis=1), -1, 1)
        cosine = np.where(error == 0, 1.0, np.where(np.minimum(size_a, size_r) == 0, 0.0, cosine))
        far = ~(same | finite).all(axis=1)
        columns = (cosine, -20 * np.log10(relative), error, relative)
        limited = [np.where(far, worst, column).tolist() for worst, column in zip(_INFINITE, columns, strict=True)]
    return [Distance(*row) for row in zip(*limited, strict=True)]


def _norm(rows: Array) -> Array:
    scale = np.max(np.abs(rows), axis=1, initial=0.0)
    scaled = np.where(scale[:, None] > 0, rows / scale[:, None], 0.0)
    return np.asarray(np.where(np.isinf(scale), inf, scale * np.sqrt(np.sum(scaled * scaled, axis=1))))
