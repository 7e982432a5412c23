"""Kernels that move elements, gather or scatter by indices, or generate tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, check_indices, flat_positions, named_kernels
from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array

Sizes = tuple[int, ...]


def _split(*arrays: Array, axis: int) -> None:
    *parts, x = arrays
    ends = accumulate(part.shape[axis] for part in parts)
    for part, piece in zip(parts, np.split(x, list(ends)[:-1], axis), strict=True):
        np.copyto(part, piece)


def _slice(out: Array, x: Array, *, axes: Sizes, starts: Sizes, ends: Sizes, steps: Sizes) -> None:
    index = [slice(None)] * x.ndim
    for axis, *limits in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(*limits)
    np.copyto(out, x[tuple(index)])


def _pad(out: Array, x: Array, *, pads: Sizes, mode: str, value: float) -> None:
    pairs = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    x = x[tuple(slice(max(0, -begin), size - max(0, -end)) for (begin, end), size in zip(pairs, x.shape, strict=True))]
    pairs = [(max(0, begin), max(0, end)) for begin, end in pairs]
    fill: Any = {"constant_values": value} if mode == "constant" else {}
    np.copyto(out, np.pad(x, pairs, mode=mode, **fill) if pairs else x)  # type: ignore[call-overload]


def _gather(out: Array, x: Array, indices: Array, *, axis: int) -> None:
    check_indices(indices, x.shape[axis])
    # numpy's other modes copy once more; "wrap" allows negative indices
    np.take(x, indices, axis=axis, out=out, mode="wrap")


def _gather_elements(out: Array, x: Array, indices: Array, *, axis: int) -> None:
    check_indices(indices, x.shape[axis])
    # other axes may be shorter in the indices
    lengths = (slice(None) if place == axis else slice(length) for place, length in enumerate(indices.shape))
    np.copyto(out, np.take_along_axis(x[tuple(lengths)], indices, axis=axis))


def _gather_nd(out: Array, x: Array, indices: Array, *, batch_dims: int) -> None:
    batches, sizes = prod(x.shape[:batch_dims]), x.shape[batch_dims : batch_dims + indices.shape[-1]]
    positions = flat_positions(indices, sizes).reshape(batches, -1)
    positions += np.arange(batches).reshape(-1, 1) * prod(sizes)
    np.copyto(out, x.reshape(batches * prod(sizes), -1)[positions.reshape(-1)].reshape(out.shape))


_COMBINE: Mapping[str, Callable[..., None]] = {
    "add": np.add.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
    "mul": np.multiply.at,
    "none": lambda target, positions, updates: target.__setitem__(positions, updates),
}
"""Reduction -> function that combines elements with updates; repeated positions accumulate."""


def _scatter_nd(out: Array, x: Array, indices: Array, updates: Array, *, reduction: str) -> None:
    sizes = x.shape[: indices.shape[-1]]
    positions = flat_positions(indices, sizes)
    np.copyto(out, x)
    rows = out.reshape(prod(sizes), -1)
    _COMBINE[reduction](rows, positions.reshape(-1), updates.reshape(-1, rows.shape[1]))


def _scatter_elements(out: Array, x: Array, indices: Array, updates: Array, *, axis: int, reduction: str) -> None:
    check_indices(indices, x.shape[axis])
    places = list(np.meshgrid(*map(np.arange, indices.shape), indexing="ij", sparse=True))
    places[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
    positions = np.ravel_multi_index(np.broadcast_arrays(*places), x.shape)
    np.copyto(out, x)
    _COMBINE[reduction](out.reshape(-1), positions.reshape(-1), updates.reshape(-1))


def _tensor_scatter(out: Array, x: Array, updates: Array, starts: Array | None = None, *, axis: int, mode: str) -> None:
    size, count = x.shape[axis], updates.shape[axis]
    begins = np.zeros(len(x), np.int64) if starts is None else starts
    places = begins.reshape(-1, 1) + np.arange(count)
    if mode == "circular":
        places %= size
    elif places.min() < 0 or places.max() >= size:
        raise InputValueError(
            f"{count} positions do not fit the axis: got positions from {places.min()} to {places.max()} "
            f"for an axis of {size} elements"
        )
    np.copyto(out, x)
    np.moveaxis(out, axis, 1)[np.arange(len(x)).reshape(-1, 1), places] = np.moveaxis(updates, axis, 1)


def _one_hot(out: Array, indices: Array, values: Array, *, axis: int) -> None:
    places = np.expand_dims(indices.astype(np.int64), axis)
    classes = np.arange(out.shape[axis]).reshape((-1,) + (1,) * (out.ndim - axis - 1))
    places = np.where(places < 0, places + out.shape[axis], places)
    np.copyto(out, np.where(places == classes, values[1], values[0]))


def _reverse_sequence(out: Array, x: Array, lengths: Array, *, batch_axis: int, time_axis: int) -> None:
    source, target = (np.moveaxis(array, (batch_axis, time_axis), (0, 1)) for array in (x, out))
    steps, ends = np.arange(source.shape[1]), lengths.reshape(-1, 1)
    if lengths.min() < 0 or lengths.max() > steps.size:
        length_range = f"from {lengths.min()} to {lengths.max()}"
        raise InputValueError(f"a length is out of bounds: got lengths {length_range} for {steps.size} time steps")
    places = np.where(steps < ends, ends - 1 - steps, steps)
    np.copyto(target, source[np.arange(len(source)).reshape(-1, 1), places])


def _range(out: Array, start: Array, delta: Array) -> None:
    # positions, products and sums wrap around consistently in a narrow type
    np.add(np.arange(out.size).astype(out.dtype) * delta, start, out)


def _bit_cast(out: Array, x: Array) -> None:
    np.copyto(out, x != 0 if out.dtype.kind == "b" else x.view(out.dtype))


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(_bit_cast, _gather, _gather_elements, _gather_nd, _one_hot, _pad, _range, _reverse_sequence),
    **named_kernels(_scatter_elements, _scatter_nd, _slice, _split, _tensor_scatter),
    "concat": NumpyKernel(lambda out, *parts, axis: np.concatenate(parts, axis, out)),
    "copy": NumpyKernel(np.copyto),
    "diagonal": NumpyKernel(lambda out, k: np.copyto(out, np.eye(len(out), out.shape[1], k, dtype=out.dtype))),
    "expand": NumpyKernel(np.copyto),
    "tile": NumpyKernel(lambda out, x, repeats: np.copyto(out, np.tile(x, repeats))),
    "transpose": NumpyKernel(lambda out, x, perm: np.copyto(out, x.transpose(perm))),
}
