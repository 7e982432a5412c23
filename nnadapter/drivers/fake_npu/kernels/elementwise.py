"""Elementwise kernels, and conversions between integers and reals.

Scales and zero points are float32 constants: one element, or one per index of `axis` (-1 for none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import BLOCK_ELEMENTS, FUNCTIONS, Finish, NumpyKernel, apply, blocks
from nnadapter.ir.operand import Array


def _divide(x: Array, y: Array, out: Array) -> None:
    """Divide as ONNX: integers truncate toward zero; numpy rounds down."""
    if out.dtype.kind == "f":
        np.divide(x, y, out)
        return
    quotient, remainder = np.divmod(x, y)
    np.add(quotient, (remainder != 0) & ((x < 0) != (y < 0)), out, casting="unsafe")


def _power(x: Array, exponent: Array, out: Array) -> None:
    """Compute integers in float64 as ONNX Runtime does, except int64, which does not fit."""
    if out.dtype.kind == "f" or (out.dtype == x.dtype == exponent.dtype == np.int64 and exponent.min() >= 0):
        np.power(x, exponent.astype(x.dtype, copy=False), out)
    else:
        np.copyto(out, np.power(x.astype(np.float64), exponent), casting="unsafe")


BINARY: Mapping[str, Callable[..., object]] = {
    "add": np.add,
    "and": np.logical_and,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "divide": _divide,
    "equal": np.equal,
    "float_modulo": np.fmod,
    "floor_divide": np.floor_divide,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "modulo": np.mod,
    "multiply": np.multiply,
    "not_equal": np.not_equal,
    "or": np.logical_or,
    "power": _power,
    # As in ONNX, too large or negative shifts keep the sign.
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "subtract": np.subtract,
    "xor": np.logical_xor,
}
"""Called as `function(x, y, out=out)`."""


def _binary(out: Array, x: Array, y: Array, *, function: Callable[..., object], finish: Finish | None = None) -> None:
    """Apply a function of two variables and the activation, in blocks unless an operand is broadcast."""
    if finish is None or not x.shape == y.shape == out.shape:
        function(x, y, out=out)
        if finish is not None:
            finish(out)
        return
    x, y, out = x.reshape(-1), y.reshape(-1), out.reshape(-1)
    for block in blocks(out.size, BLOCK_ELEMENTS):
        function(x[block], y[block], out=out[block])
        finish(out[block])


def _sum(out: Array, first: Array, second: Array, *others: Array) -> None:
    np.add(first, second, out)
    for other in others:
        np.add(out, other, out)


def _round_to_half(out: Array, x: Array) -> None:
    x, out = x.reshape(-1), out.reshape(-1)
    for block in blocks(x.size, BLOCK_ELEMENTS):
        out[block] = x[block].astype(np.float16)


def _swiglu(out: Array, gate: Array, value: Array, *, alpha: float) -> None:
    gate, value, out = (array.reshape(-1) for array in (gate, value, out))
    for block in blocks(out.size, BLOCK_ELEMENTS):
        np.multiply(FUNCTIONS["swish"](gate[block], alpha), value[block], out[block])


def _pieces(arrays: Sequence[Array], values: Sequence[Array], axis: int) -> Iterator[list[Array]]:
    """Yield blocks as [outer, axis, inner], with `values` broadcastable along the axis."""
    sizes = arrays[0].shape
    shape = (prod(sizes[:axis]), sizes[axis], prod(sizes[axis + 1 :])) if axis >= 0 else (prod(sizes), 1, 1)
    matrices, spread = [array.reshape(shape) for array in arrays], [value.reshape(1, -1, 1) for value in values]
    for some in blocks(shape[0], max(1, BLOCK_ELEMENTS // max(1, shape[1] * shape[2]))):
        yield [*(matrix[some] for matrix in matrices), *spread]


def to_integers(
    out: Array, x: Array, scale: Array, zero_point: Array, *, combine: np.ufunc, axis: int, minimum: int, maximum: int
) -> None:
    """Quantize: combine with the scale, round half to even, add the zero point, saturate.

    `fmax` turns NaN into the minimum, as processors do.
    """
    for real, target, factor, point in _pieces((x, out), (scale, zero_point), axis):
        # as in ONNX Runtime: round sums to float32 before scaling
        scaled = combine(real.astype(np.float32), factor)
        np.rint(scaled, scaled)
        scaled += point
        np.fmax(scaled, np.float32(minimum), out=scaled)
        np.minimum(scaled, np.float32(maximum), out=scaled)
        np.copyto(target, scaled, casting="unsafe")


def center(out: Array, x: Array, zero_point: Array, *, axis: int) -> None:
    """Subtract the zero point, exactly in float32 and float64."""
    for integers, target, point in _pieces((x, out), (zero_point,), axis):
        np.subtract(integers, point, target, casting="same_kind")


def dequantize(out: Array, x: Array, zero_point: Array, scale: Array, *, axis: int) -> None:
    """Subtract the zero point and multiply by the scale."""
    for integers, target, point, factor in _pieces((x, out), (zero_point, scale), axis):
        # int32 minus float32 is float64, so it is rounded once
        np.subtract(integers, point, target, casting="same_kind")
        np.multiply(target, factor, target)


def look_up(out: Array, x: Array, table: Array) -> None:
    """Map 8-bit integers by their bits through a table of 256 results."""
    x, out = x.reshape(-1).view(np.uint8), out.reshape(-1)
    for block in blocks(x.size, BLOCK_ELEMENTS):
        np.take(table, x[block], out=out[block], mode="clip")


KERNELS: Mapping[str, NumpyKernel] = {
    **{name: NumpyKernel(partial(_binary, function=each), (0, 1), fuses=True) for name, each in BINARY.items()},
    "cast": NumpyKernel(lambda out, x: np.copyto(out, x, casting="unsafe")),
    "prelu": NumpyKernel(lambda out, x, slope: np.add(np.maximum(x, 0), slope * np.minimum(x, 0), out), in_place=(0,)),
    "round_to_half": NumpyKernel(_round_to_half, in_place=(0,)),
    "sum": NumpyKernel(_sum, in_place=(0, 1)),
    "swiglu": NumpyKernel(_swiglu, in_place=(0, 1)),
    "unary": NumpyKernel(lambda out, x, function, arguments: apply(function, x, out, arguments), in_place=(0,)),
    "where": NumpyKernel(lambda out, condition, x, y: np.copyto(out, np.where(condition, x, y))),
    "center": NumpyKernel(center),
    "dequantize": NumpyKernel(dequantize),
    "look_up": NumpyKernel(look_up),
    "quantize": NumpyKernel(partial(to_integers, combine=np.divide)),
    "requantize": NumpyKernel(partial(to_integers, combine=np.multiply)),
}
