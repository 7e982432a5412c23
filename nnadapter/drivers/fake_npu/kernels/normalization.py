"""Softmax, normalizations, and classification losses."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, named_kernels
from nnadapter.drivers.fake_npu.kernels.reduction import sum_over
from nnadapter.ir.operand import Array


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
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias over axes from `axis` on."""
    depth = prod(x.shape[axis:])
    x, rows = x.reshape(-1, depth), out.reshape(-1, depth)
    np.subtract(x, np.add.reduce(x, axis=1, keepdims=True) / depth, rows)
    deviation = np.sqrt(np.einsum("rd,rd->r", rows, rows) / depth + epsilon)
    np.divide(rows, deviation[:, None], rows)
    np.multiply(out, scale, out)
    if bias is not None:
        np.add(out, bias, out)


def rms_normalization(out: Array, x: Array, scale: Array, *, axis: int, epsilon: float) -> None:
    """Compute x / sqrt(mean(x^2) + epsilon) * scale over axes from `axis` on."""
    depth = prod(x.shape[axis:])
    rows = x.reshape(-1, depth)
    norm = np.sqrt(np.einsum("rd,rd->r", rows, rows) / depth + epsilon)
    np.divide(rows, norm[:, None], out.reshape(-1, depth))
    np.multiply(out, scale, out)


def _center(out: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """Write x - mean over `axes`, and return the variance."""
    count = prod(x.shape[axis] for axis in axes)
    np.subtract(x, sum_over(x, axes) / count, out)
    variance: Array = sum_over(out * out, axes) / count
    return variance


def instance_normalization(
    out: Array, x: Array, scale: Array, bias: Array, *, axes: tuple[int, ...], channel_axis: int, epsilon: float
) -> None:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias over `axes`."""
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
