"""Movement of elements: slices, pads, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.geometry import crop_and_padding, positive_slices
from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.numerics import (
    ALL_NUMBERS,
    HELD,
    LAYOUTS,
    MOVED,
    Function,
    computes,
    direct,
    moves,
    shared,
)
from nnadapter.ir.named_operation import NamedOperation


def _split(x: Any, axis: int, split: Any) -> list[Any]:
    ends = np.cumsum(split)
    return [
        jax.lax.slice_in_dim(x, int(end - size), int(end), axis=axis) for size, end in zip(split, ends, strict=True)
    ]


def from_the_front(indices: Any, size: int) -> Any:
    """Replace negative indices, which count from the end, by nonnegative ones."""
    return jnp.where(indices < 0, indices + size, indices)


def within(indices: Any, size: int) -> Any:
    """Apply `from_the_front`, and clamp the result."""
    return jnp.clip(from_the_front(indices, size), 0, max(0, size - 1))  # JAX would count again


def take(x: Any, indices: Any, axis: int) -> Any:
    """Take slices along an axis; indices are clamped."""
    return jnp.take(x, within(indices, x.shape[axis]), axis, mode="clip")


def _gather_elements(x: Any, indices: Any, axis: int) -> Any:
    reached = tuple(slice(size) if other != axis else slice(None) for other, size in enumerate(indices.shape))
    return jnp.take_along_axis(x[reached], within(indices, x.shape[axis]), axis, mode="clip")


FUNCTIONS: Mapping[str, Function] = {
    **shared("RESHAPE TRANSPOSE EXPAND TILE CONCAT FILL"),
    "GATHER": take,
    "GATHER_ELEMENTS": _gather_elements,
}


@lowers(*FUNCTIONS, types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_movement(operation: NamedOperation) -> Computes:
    """Lower operations that move elements; CONCAT requantizes if inputs and result have different scales."""
    quantized = operation.output.type.quantized
    if operation.type == "CONCAT" and any(
        operand and operand.type.quantized != quantized for operand in operation.inputs
    ):
        return computes(operation, FUNCTIONS[operation.type])
    return moves(operation, FUNCTIONS[operation.type])


lower_split = direct({"SPLIT": _split}, moves, types=MOVED, quantized=True, layouts=LAYOUTS)


@lowers("SLICE", types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_slice(operation: NamedOperation) -> Computes:
    """Lower SLICE."""
    slices, reversed_axes = positive_slices(operation)
    return lambda x: jax.lax.rev(x[slices], reversed_axes) if reversed_axes else x[slices]


@lowers("PAD", types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_pad(operation: NamedOperation) -> Computes:
    """Lower PAD."""
    crop, widths = crop_and_padding(operation)
    mode, more = operation.mode, {}
    if mode == "constant":
        more["constant_values"] = np.array(operation.value).astype(operation.output.type.dtype.array_type)
    if not widths:
        return lambda x: x
    return lambda x: jnp.pad(x[crop], widths, mode=mode, **more)


@lowers("RANGE", types=ALL_NUMBERS)
def lower_range(operation: NamedOperation) -> Computes:
    """Lower RANGE."""
    dtype, count = operation.output.type.dtype.array_type, operation.count
    wide = jnp.float32 if operation.output.type.dtype in ("float16", "bfloat16") else dtype

    def numbers(start: Any, delta: Any) -> Any:
        return (start.astype(wide) + jnp.arange(count).astype(wide) * delta.astype(wide)).astype(dtype)

    return numbers


_WRITES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _written(x: Any, where: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    if x.dtype == bool and reduction != "none":  # bool: add is or, multiply is and
        numbers = _written(x.astype(jnp.int8), where, updates.astype(jnp.int8), _OF_BOOLEANS[reduction])
        return numbers.astype(bool)
    return getattr(x.at[where], _WRITES[reduction])(updates, mode="drop")


_OF_BOOLEANS = {"add": "max", "max": "max", "mul": "min", "min": "min"}


def _written_at(indices: Any, size: int) -> Any:
    """Return nonnegative indices for a scatter; invalid ones become too large to write."""
    places = from_the_front(indices, size)
    return jnp.where(places < 0, jnp.iinfo(places.dtype).max, places)  # JAX would count again


def _along(shape: Any, axis: int) -> Any:
    return jnp.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - 1 - axis))


def _gather_nd(x: Any, indices: Any, batch_dims: int) -> Any:
    count = indices.shape[-1]
    batch = tuple(_along(indices.shape[:-1], axis) for axis in range(batch_dims))
    places = tuple(within(indices[..., i], x.shape[batch_dims + i]) for i in range(count))
    return x.at[(*batch, *places)].get(mode="clip")


def _scatter_elements(x: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    places = _written_at(indices, x.shape[axis])
    where = tuple(places if dim == axis else _along(indices.shape, dim) for dim in range(x.ndim))
    return _written(x, where, updates, reduction)


def _scatter_nd(x: Any, indices: Any, updates: Any, reduction: str) -> Any:
    where = tuple(_written_at(indices[..., i], x.shape[i]) for i in range(indices.shape[-1]))
    return _written(x, where, updates, reduction) if where else _written_over(x, updates, reduction, indices.shape[:-1])


def _written_over(x: Any, updates: Any, reduction: str, shape: Any) -> Any:
    """Write each update over the entire `x`, in order, as a scatter with empty index vectors does."""
    flat = x.reshape(1, -1)
    rows = updates.reshape(int(np.prod(shape)), -1)
    places = (jnp.zeros(len(rows), int),)
    return _written(flat, places, rows, reduction).reshape(x.shape)


def _tensor_scatter(x: Any, updates: Any, starts: Any = None, *, axis: int, mode: str) -> Any:
    shape = updates.shape
    positions = _along(shape, axis)
    if starts is not None:
        positions = positions + starts.reshape(-1, *[1] * (len(shape) - 1))
    if mode == "circular":
        positions = positions % x.shape[axis]
    return _written(
        x, tuple(positions if dim == axis else _along(shape, dim) for dim in range(len(shape))), updates, "none"
    )


def _reverse_sequence(x: Any, lengths: Any, batch_axis: int, time_axis: int) -> Any:
    times, ends = _along(x.shape, time_axis), lengths.reshape(-1, *[1] * (x.ndim - 1 - batch_axis))
    places = jnp.where(times < ends, ends - 1 - times, times)
    return jnp.take_along_axis(x, jnp.broadcast_to(places, np.broadcast_shapes(places.shape, (1,) * x.ndim)), time_axis)


_MOVEMENTS: Mapping[str, Function] = {
    "GATHER_ND": _gather_nd,
    "TENSOR_SCATTER": _tensor_scatter,
    "REVERSE_SEQUENCE": _reverse_sequence,
}
lower_indexed = direct(_MOVEMENTS, moves, types=HELD)
lower_scatter = direct(
    {"SCATTER_ELEMENTS": _scatter_elements, "SCATTER_ND": _scatter_nd},
    computes,
    types=HELD,
    limits="the compiler decides which of several updates of one element stays",
)


@lowers("ONE_HOT", types=HELD, results=ALL_NUMBERS)
def lower_one_hot(operation: NamedOperation) -> Computes:
    """Lower ONE_HOT."""

    def function(indices: Any, values: Any, axis: int, depth: int) -> Any:
        places = jnp.expand_dims(indices, axis)
        steps = _along((*indices.shape[:axis], depth, *indices.shape[axis:]), axis)
        classes = jnp.trunc(places) if jnp.issubdtype(places.dtype, jnp.floating) else places
        is_hot = (classes == steps) | (classes == steps - depth)
        return jnp.where(is_hot, values[1], values[0])

    return moves(operation, function)
