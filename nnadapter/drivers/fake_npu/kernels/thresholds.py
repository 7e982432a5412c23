"""Functions of one variable that change their form at a threshold, and tests of single numbers.

They are called as the functions of `functions` are, and stand in its table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nnadapter.ir.operand import Array

_Function = Callable[..., object]


def celu(alpha: float) -> _Function:
    """The function max(0, x) + min(0, alpha (exp(x / alpha) - 1)); one temporary."""

    def function(x: Array, out: Array, negative: Array) -> None:
        np.divide(x, alpha, negative)
        np.expm1(negative, negative)
        np.multiply(negative, alpha, negative)
        np.minimum(negative, 0, out=negative)
        np.maximum(x, 0, out=out)
        np.add(out, negative, out)

    return function


def shrink(bias: float, lambd: float) -> _Function:
    """The function x + bias below -lambd, x - bias above lambd, 0 between; two temporaries."""

    def function(x: Array, out: Array, shifted: Array, mask: Array) -> None:
        chosen = _flags(mask, x.size)
        shifted[...] = 0
        np.greater(x, lambd, out=chosen)
        np.subtract(x, bias, out=shifted, where=chosen, casting="unsafe")
        np.less(x, -lambd, out=chosen)
        np.add(x, bias, out=shifted, where=chosen, casting="unsafe")
        np.copyto(out, shifted)

    return function


def thresholded_relu(alpha: float) -> _Function:
    """The function x above alpha, 0 elsewhere; one temporary."""

    def function(x: Array, out: Array, mask: Array) -> None:
        gone = _flags(mask, x.size)
        np.greater(x, alpha, out=gone)
        np.logical_not(gone, gone)
        np.copyto(out, x)
        np.copyto(out, 0, where=gone)

    return function


def _flags(temporary: Array, count: int) -> Array:
    """Truth values in the memory of a temporary, whose elements are as wide or wider."""
    return temporary.view(np.bool_)[:count]


def is_infinite(detect_negative: float, detect_positive: float) -> _Function:
    """Whether a number is infinite, with a sign that is looked for."""
    if detect_negative and detect_positive:
        return np.isinf
    if not (detect_negative or detect_positive):
        return lambda x, out: np.copyto(out, False)
    limit = np.inf if detect_positive else -np.inf
    return lambda x, out: np.equal(x, limit, out=out)
