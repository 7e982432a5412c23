"""Kernels along axes: reductions, arg max and min, top k, cumulative operations, Fourier transforms, normalizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, named_kernels
from nnadapter.ir.operand import Array


def sum_over(x: Array, axes: Sequence[int]) -> Array:
    """Return sums over axes, which keep size 1.

    Several axes take two steps, because adding thousands of terms to one float loses digits.
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

    As in ONNX Runtime, NaN is skipped, unless the first element is NaN. `find` is `np.argmax` or `np.argmin`; `best`
    skips NaN.
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


def softmax(out: Array, x: Array, *, axis: int) -> None:
    """Compute the softmax along an axis."""
    np.exp(x - np.maximum.reduce(x, axis=axis, keepdims=True), out)
    np.divide(out, np.add.reduce(out, axis=axis, keepdims=True), out)


def log_softmax(out: Array, x: Array, *, axis: int) -> None:
    """Compute x - max - log(sum(exp(x - max))) along an axis."""
    shifted = x - np.maximum.reduce(x, axis=axis, keepdims=True)
    np.subtract(shifted, np.log(np.add.reduce(np.exp(shifted), axis=axis, keepdims=True)), out)


def layer_normalization(
    out: Array, x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float
) -> None:
    """Normalize over axes from `axis` on, then scale and add the bias."""
    depth = prod(x.shape[axis:])
    x, rows = x.reshape(-1, depth), out.reshape(-1, depth)
    np.subtract(x, np.add.reduce(x, axis=1, keepdims=True) / depth, rows)
    deviation = np.sqrt(np.einsum("rd,rd->r", rows, rows) / depth + epsilon)
    np.divide(rows, deviation[:, None], rows)
    np.multiply(out, scale, out)
    if bias is not None:
        np.add(out, bias, out)


def rms_normalization(out: Array, x: Array, scale: Array, *, axis: int, epsilon: float) -> None:
    """Divide by the root mean square over axes from `axis` on, then scale."""
    depth = prod(x.shape[axis:])
    rows = x.reshape(-1, depth)
    norm = np.sqrt(np.einsum("rd,rd->r", rows, rows) / depth + epsilon)
    np.divide(rows, norm[:, None], out.reshape(-1, depth))
    np.multiply(out, scale, out)


def _center(out: Array, x: Array, axes: tuple[int, ...]) -> Array:
    count = prod(x.shape[axis] for axis in axes)
    np.subtract(x, sum_over(x, axes) / count, out)
    variance: Array = sum_over(out * out, axes) / count
    return variance


def instance_normalization(
    out: Array, x: Array, scale: Array, bias: Array, *, axes: tuple[int, ...], channel_axis: int, epsilon: float
) -> None:
    """Normalize over `axes`, then scale and add the bias per channel."""
    variance = _center(out, x, axes)
    channels = [1] * x.ndim
    channels[channel_axis] = scale.size
    np.multiply(out, scale.reshape(channels) / np.sqrt(variance + epsilon), out)
    np.add(out, bias.reshape(channels), out)


def mean_variance_normalization(out: Array, x: Array, *, axes: tuple[int, ...], epsilon: float) -> None:
    """Compute (x - mean) / (sqrt(variance) + epsilon) over `axes`."""
    np.divide(out, np.sqrt(_center(out, x, axes)) + epsilon, out)


def local_response_normalization(
    out: Array, x: Array, *, size: int, alpha: float, beta: float, bias: float, channel_axis: int
) -> None:
    """Compute x / (bias + alpha / size * sum of squares of `size` channels)^beta."""
    x, out = np.moveaxis(x, channel_axis, 0), np.moveaxis(out, channel_axis, 0)
    squares, channels = x * x, len(x)
    total = squares.copy()
    # channel c sums c - (size - 1) // 2 to c + size // 2
    for shift in range(-((size - 1) // 2), size // 2 + 1):
        if shift and abs(shift) < channels:
            target = total[max(0, -shift) : channels - max(0, shift)]
            target += squares[max(0, shift) : channels - max(0, -shift)]
    np.multiply(x, (total * (alpha / size) + bias) ** -beta, out)


def lp_normalization(out: Array, x: Array, *, axis: int, p: int) -> None:
    """Compute x / norm(x); zeros stay zeros."""
    norm = np.add.reduce(x * x if p == 2 else np.abs(x), axis=axis, keepdims=True)
    norm = np.sqrt(norm) if p == 2 else norm
    np.copyto(norm, 1, where=norm == 0)
    np.divide(x, norm, out)


def negative_log_likelihood(
    out: Array, x: Array, target: Array, weight: Array | None = None, *, reduction: str, ignore_index: int
) -> None:
    """Compute minus the target's log-probability times its class weight; ignored targets count 0."""
    counts = target != ignore_index
    classes = np.where(counts, target, 0).astype(np.int64)
    weights = np.where(counts, 1 if weight is None else weight[classes], 0).astype(x.dtype)
    losses = np.where(counts, -np.take_along_axis(x, classes[:, None], 1)[:, 0] * weights, 0).astype(x.dtype)
    if reduction == "none":
        np.copyto(out, losses)
    else:
        np.copyto(out, losses.sum() / (weights.sum() if reduction == "mean" else 1))


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
    **named_kernels(negative_log_likelihood),
    **named_kernels(
        instance_normalization,
        layer_normalization,
        local_response_normalization,
        log_softmax,
        lp_normalization,
        mean_variance_normalization,
        rms_normalization,
        softmax,
        in_place=(0,),
    ),
}
