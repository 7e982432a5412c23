"""Kernels that read or write at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import (
    KernelArguments,
    NumpyKernel,
    Outline,
    Run,
    bind_places,
    check_indices,
)
from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array

_COMBINE: Mapping[str, Callable[..., None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}
"""By reduction: combines `updates` with what is at `places` already, one after the other."""


def _scatter(reduction: str, target: Array, places: Array, updates: Array) -> None:
    if reduction == "none":
        target[places] = updates
    else:
        _COMBINE[reduction](target, places, updates)


def _rows_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Two places for every row of indices."""
    return (TensorType("int64", outline.inputs[1].dimensions[:-1]),) * 2


def _bind_gather_nd(call: KernelArguments) -> Run:
    (x, indices), (out,), (places, spare) = call.inputs, call.outputs, call.scratch
    batch, depth = call.parameters["batch_dims"], indices.shape[-1]
    batches, sizes = prod(x.shape[:batch]), x.shape[batch : batch + depth]
    find = bind_places(indices, sizes, places, spare)
    rows = x.reshape(batches * prod(sizes), -1)
    target = out.reshape(-1, rows.shape[1])
    # The rows of one batch follow those of the one before.
    starts = np.arange(batches).reshape(-1, 1) * prod(sizes)
    flat, by_batch = places.reshape(-1), places.reshape(batches, -1)

    def run() -> None:
        find()
        np.add(by_batch, starts, by_batch)
        np.take(rows, flat, axis=0, out=target, mode="clip")

    return run


def _bind_scatter_nd(call: KernelArguments) -> Run:
    (x, indices, updates), (out,), (places, spare) = call.inputs, call.outputs, call.scratch
    sizes, reduction = x.shape[: indices.shape[-1]], call.parameters["reduction"]
    find = bind_places(indices, sizes, places, spare)
    rows = out.reshape(prod(sizes), -1)
    values, flat = updates.reshape(-1, rows.shape[1]), places.reshape(-1)

    def run() -> None:
        find()
        np.copyto(out, x)
        _scatter(reduction, rows, flat, values)

    return run


def _elements_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """A place for every update."""
    return (TensorType("int64", outline.inputs[1].dimensions),)


def _bind_scatter_elements(call: KernelArguments) -> Run:
    """The place of an update: its own, but for the axis, where the index says it."""
    (x, indices, updates), (out,), (places,) = call.inputs, call.outputs, call.scratch
    axis, reduction = call.parameters["axis"], call.parameters["reduction"]
    size, steps = x.shape[axis], [prod(x.shape[place + 1 :]) for place in range(x.ndim)]
    offsets = [
        (np.arange(length) * steps[place]).reshape((-1,) + (1,) * (x.ndim - place - 1))
        for place, length in enumerate(indices.shape)
        if place != axis
    ]
    elements, flat, values = out.reshape(-1), places.reshape(-1), updates.reshape(-1)

    def run() -> None:
        check_indices(indices, size)
        np.copyto(places, indices)
        np.add(places, size, out=places, where=places < 0)
        np.multiply(places, steps[axis], places)
        for offset in offsets:
            np.add(places, offset, places)
        np.copyto(out, x)
        _scatter(reduction, elements, flat, values)

    return run


def _bind_tensor_scatter(call: KernelArguments) -> Run:
    """A cache [B, …, L, …], seen as [B, L, …], of which each batch is written from its own position on."""
    (x, updates, *starts), (out,), axis = call.inputs, call.outputs, call.parameters["axis"]
    target, values = np.moveaxis(out, axis, 1), np.moveaxis(updates, axis, 1)
    size, count, circular = x.shape[axis], updates.shape[axis], call.parameters["mode"] == "circular"
    begins = starts[0] if starts else np.zeros(x.shape[0], np.int64)
    batches, steps = np.arange(x.shape[0]).reshape(-1, 1), np.arange(count)

    def run() -> None:
        places = begins.reshape(-1, 1) + steps
        if circular:
            places %= size
        elif places.min() < 0 or places.max() >= size:
            raise InputValueError(
                f"updates of {count} positions do not fit: got positions from {places.min()} to {places.max()} "
                f"for an axis of {size} elements"
            )
        np.copyto(out, x)
        target[batches, places] = values

    return run


def _one_hot_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Every index, and whether each element is on."""
    return TensorType("int64", outline.inputs[0].dimensions), TensorType("bool", outline.outputs[0].dimensions)


def _bind_one_hot(call: KernelArguments) -> Run:
    (indices, values), (out,), (places, on) = call.inputs, call.outputs, call.scratch
    axis = call.parameters["axis"]
    depth, wanted = out.shape[axis], np.expand_dims(places, axis)
    classes = np.arange(depth).reshape((-1,) + (1,) * (out.ndim - axis - 1))

    def run() -> None:
        np.copyto(places, indices, casting="unsafe")
        np.add(places, depth, out=places, where=places < 0)
        np.equal(wanted, classes, out=on)
        np.copyto(out, values[0])
        np.copyto(out, values[1], where=on)

    return run


def _bind_reverse_sequence(call: KernelArguments) -> Run:
    (x, lengths), (out,), parameters = call.inputs, call.outputs, call.parameters
    axes = (parameters["batch_axis"], parameters["time_axis"])
    source, target = np.moveaxis(x, axes, (0, 1)), np.moveaxis(out, axes, (0, 1))
    steps, batches = np.arange(source.shape[1]), np.arange(source.shape[0]).reshape(-1, 1)

    def run() -> None:
        if lengths.min() < 0 or lengths.max() > steps.size:
            length_range = f"from {lengths.min()} to {lengths.max()}"
            raise InputValueError(f"a length is out of bounds: got lengths {length_range} for {steps.size} time steps")
        ends = lengths.reshape(-1, 1)
        np.copyto(target, source[batches, np.where(steps < ends, ends - 1 - steps, steps)])

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "gather_nd": NumpyKernel(bind=_bind_gather_nd, scratch=_rows_scratch),
    "one_hot": NumpyKernel(bind=_bind_one_hot, scratch=_one_hot_scratch),
    "reverse_sequence": NumpyKernel(bind=_bind_reverse_sequence),
    "scatter_elements": NumpyKernel(bind=_bind_scatter_elements, scratch=_elements_scratch),
    "scatter_nd": NumpyKernel(bind=_bind_scatter_nd, scratch=_rows_scratch),
    "tensor_scatter": NumpyKernel(bind=_bind_tensor_scatter),
}
"""Rows of the kernel table."""
