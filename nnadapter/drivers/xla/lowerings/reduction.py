"""What is computed along axes: reductions, running sums and products, the largest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_NUMBERS, LAYOUTS, computes
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import DataType
from nnadapter.ir.quantized import integer_range


def smallest(dtype: Any) -> Any:
    """What is below every number of a type."""
    return dtype.type(-jnp.inf if jnp.issubdtype(dtype, jnp.floating) else integer_range(DataType(dtype.name))[0])


def largest(dtype: Any) -> Any:
    """What is above every number of a type."""
    return dtype.type(jnp.inf if jnp.issubdtype(dtype, jnp.floating) else integer_range(DataType(dtype.name))[1])


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.mean(axis, keepdims=keepdims)
    return jnp.trunc(x.astype(jnp.float64).mean(axis, keepdims=keepdims))


_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "REDUCE_MEAN": _mean,
    "REDUCE_SUM": lambda x, axis, keepdims: jnp.sum(x, axis, dtype=x.dtype, keepdims=keepdims),
    "REDUCE_PROD": lambda x, axis, keepdims: jnp.prod(x, axis, dtype=x.dtype, keepdims=keepdims),
    "REDUCE_MAX": lambda x, axis, keepdims: x.max(axis, keepdims=keepdims, initial=smallest(x.dtype)),
    "REDUCE_MIN": lambda x, axis, keepdims: x.min(axis, keepdims=keepdims, initial=largest(x.dtype)),
}


@lowers(*_REDUCTIONS, types=ALL_NUMBERS, quantized=True, layouts=LAYOUTS)
def lower_reduction(operation: NamedOperation) -> Computes:
    """One of all elements along some axes."""
    function = _REDUCTIONS[operation.type]
    return computes(operation, lambda x, axes, keepdims: function(x, tuple(axes), keepdims))


def _place_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def found(x: Any, axis: int, keepdims: bool, select_last_index: bool) -> Any:
        if select_last_index:
            return x.shape[axis] - 1 - function(jnp.flip(x, axis), axis, keepdims=keepdims)
        return function(x, axis, keepdims=keepdims)

    return found


_PLACES = {"ARG_MAX": _place_of(jnp.argmax), "ARG_MIN": _place_of(jnp.argmin)}


@lowers(*_PLACES, types=ALL_NUMBERS, results=("int32", "int64"), layouts=LAYOUTS)
def lower_place(operation: NamedOperation) -> Computes:
    """Where along an axis the largest or smallest element is."""
    return computes(operation, _PLACES[operation.type])


def _running_sum(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    x = jnp.flip(x, axis) if reverse else x
    total = jnp.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = _moved_on(total, axis, 0)
    return jnp.flip(total, axis) if reverse else total


def _running_product(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    x = jnp.flip(x, axis) if reverse else x
    total = jnp.cumprod(x, axis, dtype=x.dtype)
    if exclusive:
        total = _moved_on(total, axis, 1)
    return jnp.flip(total, axis) if reverse else total


def _moved_on(x: Any, axis: int, first: int) -> Any:
    """`first` in front, and the last one left out."""
    rest = jax.lax.slice_in_dim(x, 0, max(0, x.shape[axis] - 1), axis=axis)
    front = jax.lax.slice_in_dim(jnp.full_like(x, first), 0, min(1, x.shape[axis]), axis=axis)
    return jnp.concatenate([front, rest], axis)


_RUNNING = {"CUM_SUM": _running_sum, "CUM_PROD": _running_product}


@lowers(*_RUNNING, types=ALL_NUMBERS, layouts=LAYOUTS)
def lower_running(operation: NamedOperation) -> Computes:
    """Sums and products of all elements so far."""
    return computes(operation, _RUNNING[operation.type])


def _top_k(x: Any, k: int, axis: int, largest: bool, sorted: bool) -> list[Any]:  # noqa: A002  the attributes' names
    """Of equals the lower index comes first."""
    if largest:
        order = x.shape[axis] - 1 - jnp.flip(jnp.argsort(jnp.flip(x, axis), axis, stable=True), axis)
    else:
        order = jnp.argsort(x, axis, stable=True)
    chosen = jax.lax.slice_in_dim(order, 0, k, axis=axis)
    return [jnp.take_along_axis(x, chosen, axis, mode="clip"), chosen]


@lowers("TOP_K", types=ALL_NUMBERS, results=("int32", "int64"), layouts=LAYOUTS)
def lower_top_k(operation: NamedOperation) -> Computes:
    """The largest or smallest elements along an axis, in order, and where they are."""
    return computes(operation, _top_k)
