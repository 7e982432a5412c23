"""What operations compute along axes: reductions, running sums and products, the largest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Array, axes: Any, keepdims: bool) -> Array:
        return np.asarray(function(x, axis=tuple(axes), keepdims=keepdims))

    return reduced


def _mean(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.trunc(x.mean(axis, keepdims=keepdims)) if x.dtype.kind in "iu" else x.mean(axis, keepdims=keepdims)


def _largest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.max(axis, keepdims=keepdims, initial=-np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)


def _smallest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.min(axis, keepdims=keepdims, initial=np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max)


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def found(x: Array, axis: int, keepdims: bool, select_last_index: bool) -> Array:
        if select_last_index:
            return np.asarray(x.shape[axis] - 1 - function(np.flip(x, axis), axis, keepdims=keepdims))
        return np.asarray(function(x, axis, keepdims=keepdims))

    return found


def _cum_sum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = total - x
    return np.flip(total, axis) if reverse else total


def _cum_prod(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        ones = np.ones_like(np.take(x, [0], axis))
        x = np.concatenate([ones, np.delete(x, -1, axis)], axis)
    total = np.cumprod(x, axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _top_k(x: Array, k: int, axis: int, largest: bool, sorted: bool) -> list[Array]:  # noqa: A002
    if largest:  # of equals the lower index comes first, which a reversed stable sort of the flipped axis gives
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, chosen, axis), chosen]


REDUCTION: Mapping[str, Callable[..., Any]] = {
    "REDUCE_MEAN": _reduce(_mean),
    "REDUCE_SUM": _reduce(np.sum),
    "REDUCE_MAX": _reduce(_largest),
    "REDUCE_MIN": _reduce(_smallest),
    "REDUCE_PROD": _reduce(np.prod),
    "ARG_MAX": _arg(np.argmax),
    "ARG_MIN": _arg(np.argmin),
    "CUM_SUM": _cum_sum,
    "TOP_K": _top_k,
    "CUM_PROD": _cum_prod,
}
"""By operation."""
