"""Kernels along axes: reductions, arg max and min, top k, cumulative operations, Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, named_kernels
from nnadapter.ir.operand import Array


def sum_over(x: Array, axes: Sequence[int]) -> Array:
    """Return sums over axes, which keep size 1.

    Several axes take two steps, the innermost first if possible, because adding thousands of terms to one float loses
    digits.
    """
    # Without dtype, numpy would widen narrow integers; IR results wrap around.
    if len(axes) > 1:
        first = axes[-1] if axes[-1] == x.ndim - 1 else axes[-2]
        x = np.add.reduce(x, axis=first, dtype=x.dtype, keepdims=True)
    result: Array = np.add.reduce(x, axis=tuple(axes), dtype=x.dtype, keepdims=True)
    return result


def _reduce(out: Array, x: Array, *, axes: Sequence[int], function: np.ufunc) -> None:
    function.reduce(x, axis=tuple(axes), dtype=out.dtype, out=out, keepdims=out.ndim == x.ndim)


def _extreme(
    out: Array, x: Array, *, axis: int, select_last_index: bool, find: Callable[..., Array], best: np.ufunc
) -> None:
    """Write the index of the first extreme, or the last.

    As in ONNX Runtime, NaN is skipped, except at the first position. `find` is `np.argmax` or `np.argmin`; `best` skips
    NaN.
    """
    source, size = np.flip(x, axis) if select_last_index else x, x.shape[axis]
    result = find(source, axis=axis)
    if x.dtype.kind == "f" and np.isnan(np.take_along_axis(source, np.expand_dims(result, axis), axis)).any():
        result = np.argmax(source == best.reduce(x, axis=axis, keepdims=True), axis=axis)
        result = np.where(np.isnan(x.take(0, axis)), size - 1 if select_last_index else 0, result)
    np.copyto(out, (size - 1 - result if select_last_index else result).reshape(out.shape))


def _top_k(values: Array, indices: Array, x: Array, *, axis: int, largest: bool) -> None:
    """Write the k largest or smallest elements in order, equal ones by index. NaN is largest."""
    if largest:
        # A stable ascending sort of flipped data, read backwards, keeps the order of equals.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    np.copyto(indices, np.take(order, range(values.shape[axis]), axis=axis))
    np.copyto(values, np.take_along_axis(x, indices, axis=axis))


def _running(
    out: Array, x: Array, *, axis: int, exclusive: bool, reverse: bool, function: np.ufunc, first: int
) -> None:
    """Write cumulative results; exclusive ones start with `first`."""
    if reverse:
        x, out = np.flip(x, axis), np.flip(out, axis)
    x, out = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    if exclusive:
        out[0] = first
        x, out = x[:-1], out[1:]
    function.accumulate(x, axis=0, dtype=out.dtype, out=out)


def _hardmax(out: Array, x: Array, *, axis: int) -> None:
    out[...] = 0
    np.put_along_axis(out, np.expand_dims(np.argmax(x, axis=axis), axis), 1, axis)


def _numbers(x: Array) -> Array:
    """View […, 1] as real and […, 2] as complex numbers."""
    return x.view(np.complex64)[..., 0] if x.shape[-1] == 2 else x[..., 0]


def _fourier_transform(out: Array, x: Array, *, axis: int, length: int, inverse: bool = False, onesided: bool) -> None:
    transform = getattr(np.fft, {(0, 0): "fft", (0, 1): "rfft", (1, 0): "ifft", (1, 1): "irfft"}[inverse, onesided])
    np.copyto(_numbers(out), transform(_numbers(x), length, axis), casting="same_kind")


def _short_time_fourier_transform(
    out: Array, x: Array, window: Array | None = None, *, frame_step: int, frame_length: int, onesided: bool
) -> None:
    frames = np.lib.stride_tricks.sliding_window_view(_numbers(x), frame_length, axis=1)[:, ::frame_step]
    framed = np.ascontiguousarray(frames * (1 if window is None else window))
    real = framed.view(np.float32).reshape(*framed.shape, -1)
    _fourier_transform(out, real, axis=2, length=frame_length, onesided=onesided)


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(_fourier_transform, _hardmax, _short_time_fourier_transform, _top_k),
    "arg_max": NumpyKernel(partial(_extreme, find=np.argmax, best=np.fmax)),
    "arg_min": NumpyKernel(partial(_extreme, find=np.argmin, best=np.fmin)),
    "reduce_max": NumpyKernel(partial(_reduce, function=np.maximum)),
    "reduce_mean": NumpyKernel(
        lambda out, x, axes: np.divide(sum_over(x, axes).reshape(out.shape), prod(x.shape[axis] for axis in axes), out)
    ),
    "reduce_min": NumpyKernel(partial(_reduce, function=np.minimum)),
    "reduce_prod": NumpyKernel(partial(_reduce, function=np.multiply)),
    "reduce_sum": NumpyKernel(lambda out, x, axes: np.copyto(out, sum_over(x, axes).reshape(out.shape))),
    "running_product": NumpyKernel(partial(_running, function=np.multiply, first=1)),
    "running_sum": NumpyKernel(partial(_running, function=np.add, first=0)),
}
