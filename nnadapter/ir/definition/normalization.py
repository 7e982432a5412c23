"""What brings values to a common scale: by a mean and a variance, by a norm, by a sum of exponentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape(-1, *[1] * (rank - 2)) if rank > 1 else values


def _batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    scale, bias, mean, variance = (_per_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)


def _layer_normalization(x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float) -> Any:
    result = _standardize(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return result if bias is None else result + bias


def _instance_normalization(x: Array, scale: Array, bias: Array, epsilon: float) -> Any:
    result = _standardize(x, tuple(range(2, x.ndim)), epsilon)
    return result * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def _local_response(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    sums = np.zeros_like(x)
    for channel in range(x.shape[1]):
        first, last = max(0, channel - (size - 1) // 2), min(x.shape[1] - 1, channel + size // 2)
        sums[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
    return x / (bias + alpha / size * sums) ** beta


def _softmax(x: Array, axis: int) -> Any:
    raised = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return raised / raised.sum(axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Any:
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _rms(x: Array, scale: Array, axis: int, epsilon: float) -> Any:
    return x / np.sqrt((x**2).mean(tuple(range(axis, x.ndim)), keepdims=True) + epsilon) * scale


def _lp(x: Array, axis: int, p: int) -> Any:
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def _mean_variance(x: Array, axes: Sequence[int], epsilon: float) -> Any:
    return (x - x.mean(tuple(axes), keepdims=True)) / (x.std(tuple(axes), keepdims=True) + epsilon)


def _hardmax(x: Array, axis: int) -> Array:
    rows = np.moveaxis(x, axis, -1)
    chosen = np.eye(rows.shape[-1])[np.argmax(rows, -1)]
    return np.moveaxis(chosen, -1, axis)


NORMALIZATION: Mapping[str, Callable[..., Any]] = {
    "BATCH_NORMALIZATION": _batch_normalization,
    "LAYER_NORMALIZATION": _layer_normalization,
    "INSTANCE_NORMALIZATION": _instance_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax,
    "HARDMAX": _hardmax,
    "RMS_NORMALIZATION": _rms,
    "LP_NORMALIZATION": _lp,
    "MEAN_VARIANCE_NORMALIZATION": _mean_variance,
}
"""By operation."""
