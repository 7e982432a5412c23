"""Elementwise kernels, and conversions between integers and reals.

Scales and zero points are float32 constants: one element, or one per index of `axis` (-1 for none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import FUNCTIONS, Finish, NumpyKernel, apply, named_kernels
from nnadapter.ir.operand import Array


def _divide(x: Array, y: Array, out: Array) -> None:
    """Divide as ONNX: integers truncate toward zero; numpy rounds down."""
    if out.dtype.kind == "f":
        np.divide(x, y, out)
        return
    quotient, remainder = np.divmod(x, y)
    np.add(quotient, (remainder != 0) & ((x < 0) != (y < 0)), out, casting="unsafe")


def _power(x: Array, exponent: Array, out: Array) -> None:
    """Compute powers: exactly for int64, in float64 for other integers, as in ONNX Runtime."""
    if out.dtype.kind == "f" or (out.dtype == x.dtype == exponent.dtype == np.int64 and exponent.min() >= 0):
        np.power(x, exponent.astype(x.dtype, copy=False), out)
    else:
        np.copyto(out, np.power(x.astype(np.float64), exponent), casting="unsafe")


_NUMPY_NAMES = """
add bitwise_and bitwise_or bitwise_xor equal floor_divide greater greater_equal less less_equal maximum minimum multiply
not_equal subtract
"""
BINARY: Mapping[str, Callable[..., object]] = {
    **{name: getattr(np, name) for name in _NUMPY_NAMES.split()},
    "and": np.logical_and,
    "divide": _divide,
    "float_modulo": np.fmod,
    "modulo": np.mod,
    "or": np.logical_or,
    "power": _power,
    # As in ONNX, too large or negative shifts keep the sign.
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "xor": np.logical_xor,
}
"""Called as `function(x, y, out=out)`."""


def _binary(out: Array, x: Array, y: Array, *, function: Callable[..., object], finish: Finish | None = None) -> None:
    function(x, y, out=out)
    if finish is not None:
        finish(out)


def _sum(out: Array, first: Array, second: Array, *others: Array) -> None:
    np.add(first, second, out)
    for other in others:
        np.add(out, other, out)


def _along(values: Array, x: Array, axis: int) -> Array:
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])


def to_integers(
    out: Array, x: Array, scale: Array, zero_point: Array, *, combine: np.ufunc, axis: int, minimum: int, maximum: int
) -> None:
    """Quantize: apply `combine` to x and the scale, round half to even, add the zero point, saturate.

    `fmax` turns NaN into the minimum, as processors do.
    """
    # as in ONNX Runtime: round sums to float32 before scaling
    scaled = np.rint(combine(x.astype(np.float32), _along(scale, x, axis))) + _along(zero_point, x, axis)
    np.copyto(out, np.minimum(np.fmax(scaled, np.float32(minimum)), np.float32(maximum)), casting="unsafe")


def center(out: Array, x: Array, zero_point: Array, *, axis: int) -> None:
    """Subtract the zero point."""
    np.subtract(x, _along(zero_point, x, axis), out, casting="same_kind")


def dequantize(out: Array, x: Array, zero_point: Array, scale: Array, *, axis: int) -> None:
    """Subtract the zero point and multiply by the scale."""
    # int32 minus float32 is float64, so it is rounded once
    center(out, x, zero_point, axis=axis)
    np.multiply(out, _along(scale, x, axis), out)


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(center, dequantize),
    **named_kernels(_sum, in_place=(0, 1)),
    **{name: NumpyKernel(partial(_binary, function=each), (0, 1), fuses=True) for name, each in BINARY.items()},
    "cast": NumpyKernel(lambda out, x: np.copyto(out, x, casting="unsafe")),
    "prelu": NumpyKernel(lambda out, x, slope: np.add(np.maximum(x, 0), slope * np.minimum(x, 0), out), in_place=(0,)),
    "round_to_half": NumpyKernel(lambda out, x: np.copyto(out, x.astype(np.float16)), in_place=(0,)),
    "swiglu": NumpyKernel(
        lambda out, gate, value, alpha: np.copyto(out, FUNCTIONS["swish"](gate, alpha) * value), in_place=(0, 1)
    ),
    "unary": NumpyKernel(lambda out, x, function, arguments: apply(function, x, out, arguments), in_place=(0,)),
    "where": NumpyKernel(lambda out, condition, x, y: np.copyto(out, np.where(condition, x, y))),
    "look_up": NumpyKernel(lambda out, x, table: np.copyto(out, table[x.view(np.uint8)])),
    "quantize": NumpyKernel(partial(to_integers, combine=np.divide)),
    "requantize": NumpyKernel(partial(to_integers, combine=np.multiply)),
}
