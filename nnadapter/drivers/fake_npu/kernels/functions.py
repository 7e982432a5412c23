"""Functions of one variable: the table that the unary kernel and fused activations share.

A function is called as `function(x, out, *temporaries)` with arrays of equal dimensions. `out` may be `x`, so `x`
is not read once `out` has been written; a function that needs `x` later works in a temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

Function = Callable[..., object]
"""Called as `function(x, out, *temporaries)`; what it returns is not looked at."""


@dataclass(frozen=True, slots=True)
class UnaryFunction:
    """One row of the table."""

    make: Callable[..., Function]
    """The parameters, as positional floats -> the function."""
    temporaries: int = 0
    """How many arrays of one block it needs beside input and output."""
    blocked: bool = True
    """Makes more than one pass over its data, so that it is run block by block."""


_ERFC_EXPONENT = (-1.12839167, -0.636423817, -0.103763702, 0.0214155492, -0.00253984775, 9.84480296e-05)
"""Coefficients of t, t^2, … of a polynomial p with erfc(t) = exp(p(t)) for 0 <= t <= 4."""
_ERFC_END = 4.0
"""From here on erf differs from 1 by less than float32 can say."""


def _erf(x: Array, out: Array, distance: Array, exponent: Array) -> None:
    """sign(x) (1 - exp(p(|x|))), right to 4e-7; p was fitted in float64 by iterated weighted least squares."""
    np.abs(x, distance)
    np.minimum(distance, _ERFC_END, out=distance)
    np.multiply(distance, _ERFC_EXPONENT[-1], exponent)
    for coefficient in _ERFC_EXPONENT[-2::-1]:
        np.add(exponent, coefficient, exponent)
        np.multiply(exponent, distance, exponent)
    np.exp(exponent, exponent)
    np.subtract(1, exponent, exponent)
    np.copysign(exponent, x, out)


def _gelu(x: Array, out: Array, distance: Array, exponent: Array, scaled: Array) -> None:
    """0.5 x (1 + erf(x / sqrt 2))."""
    np.multiply(x, sqrt(0.5), scaled)
    _erf(scaled, scaled, distance, exponent)
    np.add(scaled, 1, scaled)
    np.multiply(scaled, 0.5, scaled)
    np.multiply(x, scaled, out)


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
        np.maximum(out, 0, out=out)
        np.minimum(out, 1, out=out)

    return hard_sigmoid


def _hard_swish(alpha: float, beta: float) -> Function:
    gated = _hard_sigmoid(alpha, beta)

    def hard_swish(x: Array, out: Array, gate: Array) -> None:
        gated(x, gate)
        np.multiply(x, gate, out)

    return hard_swish


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _leaky_relu(alpha: float) -> Function:
    # The larger of x and alpha x where alpha <= 1, else the smaller: no mask is needed.
    chosen = np.maximum if alpha <= 1 else np.minimum

    def leaky_relu(x: Array, out: Array, scaled: Array) -> None:
        np.multiply(x, alpha, scaled)
        chosen(x, scaled, out=out)

    return leaky_relu


def _clip(minimum: float, maximum: float) -> Function:
    def clip(x: Array, out: Array) -> None:
        np.maximum(x, _bound(minimum, x.dtype), out=out)
        np.minimum(out, _bound(maximum, x.dtype), out=out)

    return clip


def _bound(value: float, dtype: np.dtype[Any]) -> float | int:
    """A bound that an array of `dtype` can be compared with, integers being cut to their range."""
    if dtype.kind == "f":
        return value
    limits = np.iinfo(dtype)
    return int(max(min(value, limits.max), limits.min))


def _elu(alpha: float) -> Function:
    return _selu(alpha, 1.0)


def _selu(alpha: float, gamma: float) -> Function:
    def selu(x: Array, out: Array, negative: Array) -> None:
        np.minimum(x, 0, out=negative)
        np.expm1(negative, negative)
        np.multiply(negative, alpha * gamma, negative)
        np.maximum(x, 0, out=out)
        np.multiply(out, gamma, out)
        np.add(out, negative, out)

    return selu


def _softplus(x: Array, out: Array, decay: Array) -> None:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    np.abs(x, decay)
    np.negative(decay, decay)
    np.exp(decay, decay)
    np.log1p(decay, decay)
    np.maximum(x, 0, out=out)
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


def _always(function: Function) -> Callable[[], Function]:
    return lambda: function


def _single(function: Function) -> UnaryFunction:
    return UnaryFunction(_always(function), blocked=False)


FUNCTIONS: Mapping[str, UnaryFunction] = MappingProxyType(
    {
        "abs": _single(np.absolute),
        "ceil": _single(np.ceil),
        "clip": UnaryFunction(_clip),
        "cos": _single(np.cos),
        "elu": UnaryFunction(_elu, 1),
        "erf": UnaryFunction(_always(_erf), 2),
        "exp": _single(np.exp),
        "floor": _single(np.floor),
        "gelu": UnaryFunction(_always(_gelu), 3),
        "gelu_tanh": UnaryFunction(_always(_gelu_tanh), 1),
        "hard_sigmoid": UnaryFunction(_hard_sigmoid),
        "hard_swish": UnaryFunction(_hard_swish, 1),
        "leaky_relu": UnaryFunction(_leaky_relu, 1),
        "log": _single(np.log),
        "mish": UnaryFunction(_always(_mish), 2),
        "neg": _single(np.negative),
        "not": _single(np.logical_not),
        "reciprocal": _single(np.reciprocal),
        "relu": _single(_relu),
        "round": _single(np.rint),
        "selu": UnaryFunction(_selu, 1),
        "sigmoid": UnaryFunction(_always(_sigmoid)),
        "sign": _single(np.sign),
        "sin": _single(np.sin),
        "softplus": UnaryFunction(_always(_softplus), 1),
        "softsign": UnaryFunction(_always(_softsign), 1),
        "sqrt": _single(np.sqrt),
        "swish": UnaryFunction(_swish, 1),
        "tanh": _single(np.tanh),
    }
)
"""By the name that instructions and the adapter IR's fuse codes use. Parameters are the IR's attributes, in order."""
