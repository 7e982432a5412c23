"""Elementwise functions and fused activations.

Functions of one variable that change their form at a threshold, and tests of single numbers.

They are called as the functions of `functions` are, and stand in its table.

Functions of one variable: the table that the unary kernel and fused activations share.

A function is called as `function(x, out, *temporaries)` with vectors of equal length. `out` may be `x`, so `x`
is not read once `out` has been written; a function that needs `x` later works in a temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS
from nnadapter.ir.operand import Array
from nnadapter.process.cache import memoize

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


Function = Callable[..., object]
"""Called as `function(x, out, *temporaries)`; what it returns is not looked at."""


class UnaryFunction(NamedTuple):
    """One row of the table."""

    make: Callable[..., Function]
    """The parameters, as positional floats -> the function."""
    temporaries: int = 0
    """How many arrays of one block it needs beside input and output."""
    blocked: bool = True
    """Makes more than one pass over its data, so that it is given at most `BLOCK_ELEMENTS` at a time."""


_ERF = (1.12837971, 0.102765481, -0.000184383747, -0.000625719538, 8.97125777e-05, -5.98568965e-06, 1.58960197e-07)
"""Coefficients of x, x^3, x^5, … of a polynomial p with erf(x) = tanh(p(x)), right to 2e-7.

Fitted in float64 by iterated weighted least squares over [0, 3.9]; beyond, p keeps growing and tanh is 1.
"""
_GELU = (0.797884268, 0.0363341491, -3.30266692e-05, -5.52733939e-05, 3.97407155e-06, -1.3378324e-07, 1.81392806e-09)
"""The same for erf(x / sqrt 2), weighted by x, as GELU needs it."""


def _tanh_of_polynomial(coefficients: tuple[float, ...], x: Array, out: Array, square: Array) -> None:
    """The odd polynomial's hyperbolic tangent, from x into `out`, which must not be x."""
    np.multiply(x, x, square)
    np.multiply(square, coefficients[-1], out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, coefficient, out)
        np.multiply(out, square, out)
    np.add(out, coefficients[0], out)
    np.multiply(out, x, out)
    np.tanh(out, out)


_exact_erf = np.frompyfunc(erf, 1, 1)
"""For float64, of which the polynomial has not the digits."""


def _erf(x: Array, out: Array, square: Array, value: Array) -> None:
    if x.dtype == np.float64:
        np.copyto(out, _exact_erf(x), casting="unsafe")
        return
    _tanh_of_polynomial(_ERF, x, value, square)
    np.copyto(out, value)


def _gelu(x: Array, out: Array, square: Array, value: Array) -> None:
    """0.5 x (1 + erf(x / sqrt 2))."""
    if x.dtype == np.float64:
        np.copyto(value, _exact_erf(np.multiply(x, sqrt(0.5))), casting="unsafe")
    else:
        _tanh_of_polynomial(_GELU, x, value, square)
    np.multiply(value, 0.5, value)
    np.add(value, 0.5, value)
    np.multiply(x, value, out)


@memoize(64)
def _block_of(value: float, dtype: np.dtype[Any]) -> Array:
    block = np.full(BLOCK_ELEMENTS, value, dtype)
    block.flags.writeable = False
    return block


def _bound(value: float, x: Array) -> Array | int:
    """What to compare the elements of one block of `x` with.

    Floats are compared with a block full of the number, which numpy does several times faster than with the number.
    """
    if x.dtype.kind == "f":
        return _block_of(value, x.dtype)[: x.size]
    limits = np.iinfo(x.dtype)
    return int(max(min(value, limits.max), limits.min))


def _gelu_tanh(x: Array, out: Array, inner: Array) -> None:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    np.multiply(x, x, inner)
    np.multiply(inner, 0.044715, inner)
    np.add(inner, 1, inner)
    np.multiply(inner, x, inner)
    np.multiply(inner, sqrt(2 / pi), inner)
    np.tanh(inner, inner)
    np.add(inner, 1, inner)
    np.multiply(inner, 0.5, inner)
    np.multiply(x, inner, out)


def _sigmoid(x: Array, out: Array) -> None:
    """1 / (1 + exp(-x)); exp may overflow to infinity, whose reciprocal is the right limit."""
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, 1, out)
    np.reciprocal(out, out)


def _swish(alpha: float = 1.0) -> Function:
    def swish(x: Array, out: Array, gate: Array) -> None:
        np.multiply(x, -alpha, gate)
        np.exp(gate, gate)
        np.add(gate, 1, gate)
        np.divide(x, gate, out)

    return swish


def _hard_sigmoid(alpha: float, beta: float) -> Function:
    def hard_sigmoid(x: Array, out: Array) -> None:
        np.multiply(x, alpha, out)
        np.add(out, beta, out)
        np.maximum(out, _bound(0, out), out=out)
        np.minimum(out, _bound(1, out), out=out)

    return hard_sigmoid


def _hard_swish(alpha: float, beta: float) -> Function:
    gated = _hard_sigmoid(alpha, beta)

    def hard_swish(x: Array, out: Array, gate: Array) -> None:
        gated(x, gate)
        np.multiply(x, gate, out)

    return hard_swish


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, _bound(0, x), out=out)


def _leaky_relu(alpha: float) -> Function:
    # The larger of x and alpha x where alpha <= 1, else the smaller: no mask is needed.
    chosen = np.maximum if alpha <= 1 else np.minimum

    def leaky_relu(x: Array, out: Array, scaled: Array) -> None:
        np.multiply(x, alpha, scaled)
        chosen(x, scaled, out=out)

    return leaky_relu


def _clip(minimum: float, maximum: float) -> Function:
    def clip(x: Array, out: Array) -> None:
        np.maximum(x, _bound(minimum, x), out=out)
        np.minimum(out, _bound(maximum, x), out=out)

    return clip


def _elu(alpha: float) -> Function:
    return _selu(alpha, 1.0)


def _selu(alpha: float, gamma: float) -> Function:
    def selu(x: Array, out: Array, negative: Array) -> None:
        np.minimum(x, _bound(0, x), out=negative)
        np.expm1(negative, negative)
        np.multiply(negative, alpha * gamma, negative)
        np.maximum(x, _bound(0, x), out=out)
        np.multiply(out, gamma, out)
        np.add(out, negative, out)

    return selu


def _softplus(x: Array, out: Array, decay: Array) -> None:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    np.abs(x, decay)
    np.negative(decay, decay)
    np.exp(decay, decay)
    np.log1p(decay, decay)
    np.maximum(x, _bound(0, x), out=out)
    np.add(out, decay, out)


def _softsign(x: Array, out: Array, size: Array) -> None:
    np.abs(x, size)
    np.add(size, 1, size)
    np.divide(x, size, out)


def _mish(x: Array, out: Array, decay: Array, inner: Array) -> None:
    """The product x tanh(softplus(x))."""
    _softplus(x, inner, decay)
    np.tanh(inner, inner)
    np.multiply(x, inner, out)


def _rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out)
    np.reciprocal(out, out)


def _always(function: Function) -> Callable[[], Function]:
    return lambda: function


def _single(function: Function) -> UnaryFunction:
    return UnaryFunction(_always(function), blocked=False)


FUNCTIONS: Mapping[str, UnaryFunction] = {
    "abs": _single(np.absolute),
    "acos": _single(np.arccos),
    "acosh": _single(np.arccosh),
    "asin": _single(np.arcsin),
    "asinh": _single(np.arcsinh),
    "atan": _single(np.arctan),
    "atanh": _single(np.arctanh),
    "bitwise_not": _single(np.bitwise_not),
    "ceil": _single(np.ceil),
    "celu": UnaryFunction(celu, 1),
    "clip": UnaryFunction(_clip),
    "cos": _single(np.cos),
    "cosh": _single(np.cosh),
    "elu": UnaryFunction(_elu, 1),
    "erf": UnaryFunction(_always(_erf), 2),
    "exp": _single(np.exp),
    "floor": _single(np.floor),
    "gelu": UnaryFunction(_always(_gelu), 2),
    "gelu_tanh": UnaryFunction(_always(_gelu_tanh), 1),
    "hard_sigmoid": UnaryFunction(_hard_sigmoid),
    "hard_swish": UnaryFunction(_hard_swish, 1),
    "is_inf": UnaryFunction(is_infinite, blocked=False),
    "is_nan": _single(np.isnan),
    "leaky_relu": UnaryFunction(_leaky_relu, 1),
    "log": _single(np.log),
    "mish": UnaryFunction(_always(_mish), 2),
    "neg": _single(np.negative),
    "not": _single(np.logical_not),
    "reciprocal": _single(np.reciprocal),
    "relu": UnaryFunction(_always(_relu)),
    "round": _single(np.rint),
    "rsqrt": UnaryFunction(_always(_rsqrt)),
    "selu": UnaryFunction(_selu, 1),
    "sigmoid": UnaryFunction(_always(_sigmoid)),
    "shrink": UnaryFunction(shrink, 2),
    "sign": _single(np.sign),
    "sin": _single(np.sin),
    "sinh": _single(np.sinh),
    "softplus": UnaryFunction(_always(_softplus), 1),
    "softsign": UnaryFunction(_always(_softsign), 1),
    "square": _single(np.square),
    "sqrt": _single(np.sqrt),
    "swish": UnaryFunction(_swish, 1),
    "tan": _single(np.tan),
    "tanh": _single(np.tanh),
    "thresholded_relu": UnaryFunction(thresholded_relu, 1),
}
"""By the name that instructions and the adapter IR's fuse codes use. Parameters are the IR's attributes, in order."""
