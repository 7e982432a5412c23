"""What brings values to a common scale: by a mean and a variance, by a norm, by a sum of exponentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, LAYOUTS, channels_second, computes
from nnadapter.drivers.xla.lowerings.integers import COMPUTED
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Layout
from nnadapter.ir.operations.layouts import IMAGES


def per_channel(values: Any, rank: int) -> Any:
    """One value for each channel of `[N, C, …]`."""
    return values.reshape(-1, *[1] * (rank - 2)) if rank > 1 else values


def _standardized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centered = x - x.mean(axes, keepdims=True)
    return centered / jnp.sqrt(jnp.square(centered).mean(axes, keepdims=True) + epsilon)


def _layer_normalization(x: Any, scale: Any, bias: Any = None, *, axis: int, epsilon: float) -> Any:
    result = _standardized(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return result if bias is None else result + bias


def _instance_normalization(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    result = _standardized(x, tuple(range(2, x.ndim)), epsilon)
    return result * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


def _local_response(x: Any, size: int, alpha: float, beta: float, bias: float) -> Any:
    before, behind = (size - 1) // 2, size // 2
    rest = [(0, 0)] * (x.ndim - 2)
    window = (1, size, *[1] * (x.ndim - 2))
    sums = jax.lax.reduce_window(
        jnp.square(x), x.dtype.type(0), jax.lax.add, window, (1,) * x.ndim, [(0, 0), (before, behind), *rest]
    )
    return x / (bias + alpha / size * sums) ** beta


def _largest_along(x: Any, axis: int) -> Any:
    return x.max(axis, keepdims=True, initial=-jnp.inf)


def softmax(x: Any, axis: int) -> Any:
    """Exponentials over their sum."""
    raised = jnp.exp(x - _largest_along(x, axis))
    return raised / raised.sum(axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    """The logarithm of exponentials over their sum."""
    shifted = x - _largest_along(x, axis)
    return shifted - jnp.log(jnp.exp(shifted).sum(axis, keepdims=True))


def _rms(x: Any, scale: Any, axis: int, epsilon: float) -> Any:
    return x / jnp.sqrt(jnp.square(x).mean(tuple(range(axis % x.ndim, x.ndim)), keepdims=True) + epsilon) * scale


def _lp(x: Any, axis: int, p: int) -> Any:
    magnitudes = jnp.abs(x)
    norm = magnitudes.sum(axis, keepdims=True) if p == 1 else (magnitudes**p).sum(axis, keepdims=True) ** (1 / p)
    return jnp.where(norm == 0, 0, x / norm)


def _mean_variance(x: Any, axes: Sequence[int], epsilon: float) -> Any:
    return (x - x.mean(tuple(axes), keepdims=True)) / (x.std(tuple(axes), keepdims=True) + epsilon)


def _hardmax(x: Any, axis: int) -> Any:
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], axis=axis, dtype=x.dtype)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "LAYER_NORMALIZATION": _layer_normalization,
    "INSTANCE_NORMALIZATION": _instance_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "SOFTMAX": softmax,
    "LOG_SOFTMAX": log_softmax,
    "HARDMAX": _hardmax,
    "RMS_NORMALIZATION": _rms,
    "LP_NORMALIZATION": _lp,
    "MEAN_VARIANCE_NORMALIZATION": _mean_variance,
}


@lowers(*FUNCTIONS, types=(*ALL_FLOATS, *COMPUTED), quantized=True, layouts=LAYOUTS)
def lower_normalization(operation: NamedOperation) -> Computes:
    """Values of a common scale."""
    function = FUNCTIONS[operation.type]
    return computes(operation, channels_second(operation, function) if operation.type in IMAGES else function)


@lowers("BATCH_NORMALIZATION", types=ALL_FLOATS, layouts=LAYOUTS)
def lower_batch_normalization(operation: NamedOperation) -> Computes:
    """By a mean and a variance of each channel that are given."""
    last = operation.input.type.layout is Layout.NHWC

    def function(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
        parts = (scale, bias, mean, variance)
        scale, bias, mean, variance = parts if last else (per_channel(value, x.ndim) for value in parts)
        return (x - mean) * (scale / jnp.sqrt(variance + epsilon)) + bias

    return computes(operation, function)
