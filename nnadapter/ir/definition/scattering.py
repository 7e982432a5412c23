"""What reads and writes at positions, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_REDUCE: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def _gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    rest = x.shape[batch_dims + indices.shape[-1] :]
    result = np.empty((*indices.shape[:-1], *rest), x.dtype)
    for place in np.ndindex(indices.shape[:-1]):
        result[place] = x[(*place[:batch_dims], *indices[place])]
    return result


def _scatter_elements(x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    result = x.copy()
    for place in np.ndindex(indices.shape):
        where = (*place[:axis], int(indices[place]), *place[axis + 1 :])
        result[where] = _REDUCE[reduction](result[where], updates[place])
    return result


def _scatter_nd(x: Array, indices: Array, updates: Array, reduction: str) -> Array:
    result = x.copy()
    for place in np.ndindex(indices.shape[:-1]):
        where = tuple(indices[place])
        result[where] = _REDUCE[reduction](result[where], updates[place])
    return result


def _tensor_scatter(x: Array, updates: Array, starts: Array | None = None, *, axis: int, mode: str) -> Array:
    result = x.copy()
    for place in np.ndindex(updates.shape):
        position = place[axis] + (0 if starts is None else int(starts[place[0]]))
        position = position % x.shape[axis] if mode == "circular" else position
        result[(*place[:axis], position, *place[axis + 1 :])] = updates[place]
    return result


def _one_hot(indices: Array, values: Array, depth: int, axis: int) -> Array:
    result = np.full((*indices.shape[:axis], depth, *indices.shape[axis:]), values[0])
    for place in np.ndindex(indices.shape):
        index = int(indices[place])
        if -depth <= index < depth:
            result[(*place[:axis], index, *place[axis:])] = values[1]
    return result


def _reverse_sequence(x: Array, lengths: Array, batch_axis: int, time_axis: int) -> Array:
    result = x.copy()
    for batch, length in enumerate(lengths):
        where: list[Any] = [slice(None)] * x.ndim
        where[batch_axis], where[time_axis] = slice(batch, batch + 1), slice(0, int(length))
        result[tuple(where)] = np.flip(x[tuple(where)], time_axis)
    return result


SCATTERING: Mapping[str, Callable[..., Any]] = {
    "GATHER_ND": _gather_nd,
    "SCATTER_ELEMENTS": _scatter_elements,
    "SCATTER_ND": _scatter_nd,
    "TENSOR_SCATTER": _tensor_scatter,
    "ONE_HOT": _one_hot,
    "REVERSE_SEQUENCE": _reverse_sequence,
}
"""By operation."""
