"""Matrices transposed in strips that fit into the processor's cache."""

from __future__ import annotations

import numpy as np

from nnadapter.ir.deferred import ArrayForm, deferrable
from nnadapter.ir.operand import Array

_ROWS = 64
"""Rows at a time: each is read in its order, and what is written of all of them stays in cache."""


def _transposed_form(matrix: Array) -> ArrayForm:
    return matrix.dtype, matrix.shape[::-1]


@deferrable(_transposed_form)
def transposed(matrix: Array) -> Array:
    """Return a matrix [K, N] as a contiguous matrix [N, K]."""
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), _ROWS):
        result[:, start : start + _ROWS] = matrix[start : start + _ROWS].T
    return result
