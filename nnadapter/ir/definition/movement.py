"""What moves, repeats or makes elements without computing with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _split(x: Array, axis: int, split: Any) -> list[Array]:
    return np.split(x, np.cumsum(split)[:-1], axis)


def _slice(x: Array, starts: Any, ends: Any, axes: Any, steps: Any) -> Array:
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(start, end, step)
    return x[tuple(where)]


def _gather_elements(x: Array, indices: Array, axis: int) -> Array:
    reached = tuple(slice(size) if other != axis else slice(None) for other, size in enumerate(indices.shape))
    return np.take_along_axis(x[reached], np.where(indices < 0, indices + x.shape[axis], indices), axis)


def _pad(x: Array, mode: str, pads: Any, value: float) -> Any:
    if x.ndim == 0:
        return x
    begins, ends = pads[: x.ndim], pads[x.ndim :]
    kept = tuple(
        slice(max(0, -begin), size - max(0, -end)) for begin, end, size in zip(begins, ends, x.shape, strict=True)
    )
    width = [(max(0, begin), max(0, end)) for begin, end in zip(begins, ends, strict=True)]
    extra = {"constant_values": np.array(value).astype(x.dtype)} if mode == "constant" else {}
    return np.pad(x[kept], width, mode=mode, **extra)  # type: ignore[call-overload]


MOVEMENT: Mapping[str, Callable[..., Any]] = {
    "RESHAPE": lambda x, shape: x.reshape(shape),
    "TRANSPOSE": lambda x, perm, output_layout: x.transpose(perm),
    "EXPAND": lambda x, shape: np.broadcast_to(x, shape),
    "TILE": lambda x, repeats: np.tile(x, repeats),
    "CONCAT": lambda *inputs, axis: np.concatenate(inputs, axis),
    "SPLIT": _split,
    "SLICE": _slice,
    "GATHER": lambda x, indices, axis: np.take(x, indices, axis),
    "GATHER_ELEMENTS": _gather_elements,
    "PAD": _pad,
    "FILL": lambda value, shape: np.full(shape, value),
    "RANGE": lambda start, delta, count: start + np.arange(count).astype(start.dtype) * delta,
}
"""By operation."""
