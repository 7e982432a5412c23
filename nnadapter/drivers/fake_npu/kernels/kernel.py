"""Kernel type, blocks that stay in cache, index checks, and functions of one variable.

A kernel is called as `run(*outputs, *inputs, **parameters)` and never writes its inputs. An input in `in_place` may
share the first output's memory. Floating-point warnings are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import erf, pi, sqrt
from typing import NamedTuple

import numpy as np

from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array

Run = Callable[[], object]
Finish = Callable[[Array], None]
"""Fused activation, applied in place to a contiguous array."""
BLOCK_ELEMENTS = 32768
"""Block size, so that several blocks fit in a level-2 cache."""


class NumpyKernel(NamedTuple):
    """Row of the kernel table."""

    run: Callable[..., None]
    in_place: tuple[int, ...] = ()
    fuses: bool = False
    """True if the kernel applies `finish`, the fused activation."""


def named_kernels(
    *functions: Callable[..., None], in_place: tuple[int, ...] = (), fuses: bool = False
) -> Mapping[str, NumpyKernel]:
    """Return kernels by the names of their functions."""
    return {function.__name__.removeprefix("_"): NumpyKernel(function, in_place, fuses) for function in functions}


def blocks(total: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover `range(total)`."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def check_indices(indices: Array, size: int) -> None:
    """Raise InputValueError unless every index is in [-size, size)."""
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        index_range = f"from {indices.min()} to {indices.max()}"
        raise InputValueError(f"an index is out of bounds: got indices {index_range} for an axis of {size} elements")


def flat_positions(indices: Array, sizes: Sequence[int]) -> Array:
    """Return flat positions for index rows [..., axes] into axes of `sizes`."""
    positions = np.zeros(indices.shape[:-1], np.int64)
    for axis, size in enumerate(sizes):
        column = indices[..., axis]
        check_indices(column, size)
        positions = positions * size + np.where(column < 0, column + size, column)
    return positions


Function = Callable[..., Array]


def apply(function: str, x: Array, out: Array, arguments: tuple[float, ...] = ()) -> None:
    """Apply a function of `FUNCTIONS` to a contiguous array; `out` may be `x`."""
    compute = FUNCTIONS[function]
    if isinstance(compute, np.ufunc):
        compute(x, out)
        return
    x, out = x.reshape(-1), out.reshape(-1)
    for block in blocks(x.size, BLOCK_ELEMENTS):
        np.copyto(out[block], compute(x[block], *arguments), casting="unsafe")


def _at_least(x: Array, value: float) -> Array:
    return np.maximum(x, _filled(x, value))


def _at_most(x: Array, value: float) -> Array:
    return np.minimum(x, _filled(x, value))


def _filled(x: Array, value: float) -> Array:
    if x.dtype.kind != "f":
        limits = np.iinfo(x.dtype)
        value = int(max(min(value, limits.max), limits.min))
    return np.full_like(x, value)


_ERF = (1.12837971, 0.102765481, -0.000184383747, -0.000625719538, 8.97125777e-05, -5.98568965e-06, 1.58960197e-07)
"""Coefficients of x, x^3, … of p with erf(x) = tanh(p(x)) within 2e-7, by weighted least squares over [0, 3.9]."""
_GELU = (0.797884268, 0.0363341491, -3.30266692e-05, -5.52733939e-05, 3.97407155e-06, -1.3378324e-07, 1.81392806e-09)
"""The same for erf(x / sqrt 2), weighted by x for GELU."""
_erf_of_number = np.frompyfunc(erf, 1, 1)


def _tanh_of_polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    square = x * x
    result = square * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        result += coefficient
        result *= square
    result += coefficients[0]
    result *= x
    return np.tanh(result, result)


def _exact_erf(x: Array) -> Array:
    """Compute erf per element; float64 needs more digits than the polynomial has."""
    return np.asarray(_erf_of_number(x), x.dtype)


def _erf(x: Array) -> Array:
    return _exact_erf(x) if x.dtype == np.float64 else _tanh_of_polynomial(_ERF, x)


def _gelu(x: Array) -> Array:
    result = _exact_erf(x * sqrt(0.5)) if x.dtype == np.float64 else _tanh_of_polynomial(_GELU, x)
    result *= 0.5
    result += 0.5
    return np.multiply(x, result, result)


def _swish(x: Array, alpha: float = 1.0, numerator: float | Array | None = None) -> Array:
    """Compute x / (1 + exp(-alpha x)); overflow of exp gives the right limit."""
    result = x * -alpha
    np.exp(result, result)
    result += 1
    return np.divide(x if numerator is None else numerator, result, result)


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    result = alpha * x
    result += beta
    return np.clip(result, 0, 1, out=result)


def _selu(x: Array, alpha: float, gamma: float = 1.0) -> Array:
    return gamma * _at_least(x, 0) + alpha * gamma * np.expm1(_at_most(x, 0))


def _softplus(x: Array) -> Array:
    return _at_least(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    low, high = (x + bias).astype(x.dtype), (x - bias).astype(x.dtype)
    return np.where(x < -lambd, low, np.where(x > lambd, high, x.dtype.type(0)))


_NUMPY_NAMES = "bitwise_not ceil cos cosh exp floor log reciprocal sign sin sinh sqrt square tan tanh"
FUNCTIONS: Mapping[str, Function] = {
    **{name: getattr(np, name) for name in _NUMPY_NAMES.split()},
    "abs": np.absolute,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "celu": lambda x, alpha: _at_least(x, 0) + _at_most(alpha * np.expm1(x / alpha), 0),
    "clip": lambda x, minimum, maximum: _at_most(_at_least(x, minimum), maximum),
    "elu": _selu,
    "erf": _erf,
    "gelu": _gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x * x))),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x, alpha, beta: np.multiply(x, gate := _hard_sigmoid(x, alpha, beta), gate),
    "is_inf": lambda x, negative, positive: np.isinf(x) & np.where(x > 0, bool(positive), bool(negative)),
    "is_nan": np.isnan,
    # x and alpha x cross at 0, so no mask is needed
    "leaky_relu": lambda x, alpha: (np.maximum if alpha <= 1 else np.minimum)(x, alpha * x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "neg": np.negative,
    "not": np.logical_not,
    "relu": lambda x: _at_least(x, 0),
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "scaled_tanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "selu": _selu,
    "shrink": _shrink,
    "sigmoid": lambda x: _swish(x, 1.0, 1.0),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "swish": _swish,
    "thresholded_relu": lambda x, alpha: np.where(x > alpha, x, x.dtype.type(0)),
}
"""Functions by name in instructions and fuse codes. Their parameters are IR attributes, in order."""
