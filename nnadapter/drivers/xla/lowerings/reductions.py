"""Reductions, cumulative operations, normalizations, softmax and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.numerics import (
    ALL_FLOATS,
    ALL_NUMBERS,
    COMPUTED,
    LAYOUTS,
    SHARED,
    Function,
    channels_second,
    computes,
    direct,
    shared,
)
from nnadapter.ir import Layout, NamedOperation
from nnadapter.ir.definition.normalization import per_channel
from nnadapter.ir.operations.windows import IMAGES


def smallest(dtype: Any) -> Any:
    """Return the smallest value, which is neutral for a maximum."""
    return dtype.type(-jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min)


def largest(dtype: Any) -> Any:
    """Return the largest value, which is neutral for a minimum."""
    return dtype.type(jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max)


def _mean(x: Any, axes: Any, keepdims: bool) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.mean(axes, keepdims=keepdims)
    return jnp.trunc(x.astype(jnp.float64).mean(axes, keepdims=keepdims))


_REDUCTIONS: Mapping[str, Function] = {
    "REDUCE_MEAN": _mean,
    "REDUCE_SUM": lambda x, axes, keepdims: jnp.sum(x, axes, dtype=x.dtype, keepdims=keepdims),
    "REDUCE_PROD": lambda x, axes, keepdims: jnp.prod(x, axes, dtype=x.dtype, keepdims=keepdims),
    "REDUCE_MAX": lambda x, axes, keepdims: x.max(axes, keepdims=keepdims, initial=smallest(x.dtype)),
    "REDUCE_MIN": lambda x, axes, keepdims: x.min(axes, keepdims=keepdims, initial=largest(x.dtype)),
}
lower_reduction = direct(_REDUCTIONS, computes, types=ALL_NUMBERS, quantized=True, layouts=LAYOUTS)
lower_place = direct(
    shared("ARG_MAX ARG_MIN"), computes, types=ALL_NUMBERS, results=("int32", "int64"), layouts=LAYOUTS
)


def _running(function: Function, first: int) -> Function:
    def run(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
        x = jnp.flip(x, axis) if reverse else x
        total = function(x, axis, dtype=x.dtype)
        if exclusive:
            leading = jax.lax.slice_in_dim(total, 0, max(0, x.shape[axis] - 1), axis=axis)
            front = jax.lax.slice_in_dim(jnp.full_like(x, first), 0, min(1, x.shape[axis]), axis=axis)
            total = jnp.concatenate([front, leading], axis)
        return jnp.flip(total, axis) if reverse else total

    return run


_RUNNING = {"CUM_SUM": _running(jnp.cumsum, 0), "CUM_PROD": _running(jnp.cumprod, 1)}
lower_running = direct(_RUNNING, computes, types=ALL_NUMBERS, layouts=LAYOUTS)


def _top_k(x: Any, k: int, axis: int, largest: bool, sorted: bool) -> list[Any]:  # noqa: A002  names of the attributes
    """Return the k largest or smallest elements and their indices; equal elements keep their order."""
    if largest:
        order = x.shape[axis] - 1 - jnp.flip(jnp.argsort(jnp.flip(x, axis), axis, stable=True), axis)
    else:
        order = jnp.argsort(x, axis, stable=True)
    chosen = jax.lax.slice_in_dim(order, 0, k, axis=axis)
    return [jnp.take_along_axis(x, chosen, axis, mode="clip"), chosen]


lower_top_k = direct({"TOP_K": _top_k}, computes, types=ALL_NUMBERS, results=("int32", "int64"), layouts=LAYOUTS)


def _local_response(x: Any, size: int, alpha: float, beta: float, bias: float) -> Any:
    begin, end = (size - 1) // 2, size // 2
    unpadded = [(0, 0)] * (x.ndim - 2)
    window = (1, size, *[1] * (x.ndim - 2))
    sums = jax.lax.reduce_window(
        jnp.square(x), x.dtype.type(0), jax.lax.add, window, (1,) * x.ndim, [(0, 0), (begin, end), *unpadded]
    )
    return x / (bias + alpha / size * sums) ** beta


def _lp(x: Any, axis: int, p: int) -> Any:
    magnitudes = jnp.abs(x)
    norm = magnitudes.sum(axis, keepdims=True) if p == 1 else (magnitudes**p).sum(axis, keepdims=True) ** (1 / p)
    return jnp.where(norm == 0, 0, x / norm)


def _hardmax(x: Any, axis: int) -> Any:
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], axis=axis, dtype=x.dtype)


_SHARED = """
LAYER_NORMALIZATION INSTANCE_NORMALIZATION SOFTMAX LOG_SOFTMAX RMS_NORMALIZATION MEAN_VARIANCE_NORMALIZATION
"""
FUNCTIONS: Mapping[str, Function] = {
    **shared(_SHARED),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "HARDMAX": _hardmax,
    "LP_NORMALIZATION": _lp,
}


@lowers(*FUNCTIONS, types=(*ALL_FLOATS, *COMPUTED), quantized=True, layouts=LAYOUTS)
def lower_normalization(operation: NamedOperation) -> Computes:
    """Lower normalizations."""
    function = FUNCTIONS[operation.type]
    return computes(operation, channels_second(operation, function) if operation.type in IMAGES else function)


@lowers("BATCH_NORMALIZATION", types=ALL_FLOATS, layouts=LAYOUTS)
def lower_batch_normalization(operation: NamedOperation) -> Computes:
    """Lower BATCH_NORMALIZATION."""
    last = operation.input.type.layout is Layout.NHWC

    def function(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
        parts = (scale, bias, mean, variance)
        scale, bias, mean, variance = parts if last else (per_channel(value, x.ndim) for value in parts)
        return (x - mean) * (scale / jnp.sqrt(variance + epsilon)) + bias

    return computes(operation, function)


def _likelihood(x: Any, target: Any, weight: Any = None, *, reduction: str, ignore_index: int | None) -> Any:
    counted = jnp.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    labels = jnp.where(counted, target, 0)
    weights = jnp.where(counted, jnp.ones((), x.dtype) if weight is None else weight.at[labels].get(mode="clip"), 0)
    likelihoods = jnp.take_along_axis(x, jnp.expand_dims(labels, 1), 1, mode="clip")[:, 0]
    losses = jnp.where(counted, -weights * likelihoods, 0)
    if reduction == "none":
        return losses
    return losses.sum() / weights.sum() if reduction == "mean" else losses.sum()


def _cross_entropy(x: Any, target: Any, weight: Any = None, **attributes: Any) -> Any:
    logarithms = SHARED["LOG_SOFTMAX"](x, 1)
    return [_likelihood(logarithms, target, weight, **attributes), logarithms]


_LOSSES = {"NEGATIVE_LOG_LIKELIHOOD_LOSS": _likelihood, "SOFTMAX_CROSS_ENTROPY_LOSS": _cross_entropy}
lower_losses = direct(_LOSSES, computes, types=ALL_FLOATS)
