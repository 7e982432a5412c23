"""Reference implementations: reading, padding and writing at positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


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
    cropped = tuple(
        slice(max(0, -begin), size - max(0, -end)) for begin, end, size in zip(begins, ends, x.shape, strict=True)
    )
    width = [(max(0, begin), max(0, end)) for begin, end in zip(begins, ends, strict=True)]
    extra = {"constant_values": np.array(value).astype(x.dtype)} if mode == "constant" else {}
    return np.pad(x[cropped], width, mode=mode, **extra)  # type: ignore[call-overload]


_REDUCE: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def _gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    slice_shape = x.shape[batch_dims + indices.shape[-1] :]
    result = np.empty((*indices.shape[:-1], *slice_shape), x.dtype)
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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "SLICE": _slice,
    "GATHER": lambda x, indices, axis: np.take(x, indices, axis),
    "GATHER_ELEMENTS": _gather_elements,
    "PAD": _pad,
    "GATHER_ND": _gather_nd,
    "SCATTER_ELEMENTS": _scatter_elements,
    "SCATTER_ND": _scatter_nd,
    "TENSOR_SCATTER": _tensor_scatter,
    "ONE_HOT": _one_hot,
    "REVERSE_SEQUENCE": _reverse_sequence,
}

DOCS = """\
# *
input: Any operand, of rank 1 or more.
-> output: Data type and dimensions of `input`; layout NCHW.
indices: The rank of `input`; not larger than it, except along `axis`. Negative ones count from the end.
reduction: Effect of an update. `none`: replaces the element. `add`, `mul`, `max`, `min`: combines old and new.
# SLICE: Elements of some axes in regular steps, forwards or backwards.
| output[…, i, …] = input[…, first + i * steps[a], …] on axis axes[a]; other axes do not change
| first = starts[a]; for a negative step min(starts[a], size - 1)
| size: step > 0: max(0, ceil((end - start) / step))
|       step < 0: max(0, ceil((min(start, size - 1) - max(end, -1)) / -step))
input: Any operand.
starts: For every axis in `axes`: the first element, from 0 to the size. With a negative step, a start equal to the size
  is the last element.
ends: The first excluded element, from 0 to the size; with a negative step, -(size + 1) is an end before element 0.
axes: Distinct axes from 0 to rank - 1, in any order.
steps: Distance between selected elements; not 0. Negative: backwards.
-> output: The data type and layout of `input`; the axes in `axes` have the sizes above.
- All of an axis of size 4 backwards: start 3, end -5, step -1. An end of -1 is rejected; numpy would read it as the
  last element.
- Starts and ends are in range: ONNX's negative and very large ones have been resolved.
- All four lists have the same length, in the order of `axes`.
- A result may have size 0.
- A per-tensor quantization passes on to the result.
example: counting(2, 4), starts=(0, 3), ends=(1, -5), axes=(0, 1), steps=(1, -1)
# GATHER: Slices of an operand along an axis, selected by index.
| output[a…, i…, b…] = input[a…, indices[i…], b…]
indices: Positions along the axis, any rank; negative ones count from the end.
-> output: The data type of `input`; the dimensions of `indices` replace the axis; layout NCHW.
- Indices outside the axis are undefined: the definition raises; devices may return anything.
- A scalar index removes the axis.
- A per-tensor quantization passes on to the result.
example: counting(3, 2), [[2, -3]], axis=0
# GATHER_ELEMENTS: Elements of an operand, each selected by an index along one axis.
| output[a…, i, b…] = input[a…, indices[a…, i, b…], b…], with the index on `axis`
-> output: The data type of `input`; the dimensions of `indices`.
- Indices outside the axis are undefined: the definition raises; devices may return anything.
- Nothing is broadcast: elements that `indices` does not cover are omitted.
- A per-tensor quantization passes on to the result.
example: counting(2, 3), [[0, -1], [1, 1]], axis=1
# PAD: Elements added around an operand, or cropped.
| output[…, i, …] = kept[…, i - max(0, begin), …] inside; outside by `mode`
| kept: the input without the elements that negative pads crop
input: Any operand.
mode: Values outside. `constant`: `value`. `edge`: the nearest element. `reflect`: mirrored at the edge element, which
  is not repeated. `wrap`: from the other end.
pads: The begins of all axes, then the ends of all axes. Negative ones crop.
value: For `constant`: the number, converted to the data type of `input`.
-> output: The data type and layout of `input`; every axis grows by begin + end.
- pads is (begin 0, begin 1, …, end 0, end 1, …), not begin and end of each axis in turn.
- Cropping comes first: with pads of both signs, modes use the remaining elements.
- `reflect` pads at most the remaining size minus 1; `edge` and `wrap` need at least one element.
- `wrap` repeats the operand as often as necessary.
- Quantized operands: `value` is the integer to insert, so real 0 is the zero point.
- The pass fuse_pad folds it into the convolution or pooling after it.
example: [[1.0, 2.0, 3.0]], pads=(0, 1, 0, 2), mode='reflect'
# GATHER_ND: Slices of an operand, each selected by several indices.
| output[b…, i…, r…] = input[b…, indices[b…, i…, 0], indices[b…, i…, 1], …, r…]
indices: [b…, i…, depth]: the last axis has indices for the `depth` axes after the batch axes. Negative ones count from
  the end.
batch_dims: Number of common leading axes, which are not indexed.
-> output: The data type of `input`; all dimensions of `indices` except the last, then the remaining ones of `input`.
- Indices outside are undefined: the definition raises; devices may return anything.
- A depth of 0 selects entire items.
example: counting(2, 2, 2), [[[1]], [[0]]], batch_dims=1
# SCATTER_ELEMENTS: A copy of an operand with single elements updated, each selected by an index along one axis.
| output = input; for every position (a…, i, b…) of indices:
|     output[a…, indices[a…, i, b…], b…] = reduction(output[…], updates[a…, i, b…])
updates: Dimensions of `indices`.
- Updates are applied in row-major order: among equal positions the last wins with `none`, and all count otherwise.
- Indices outside are undefined: the definition raises; devices may return anything.
- The input is not modified: other operations may read it.
FLOPs: 1 per update, 0 with reduction `none`
example: [[1.0, 2.0, 3.0]], [[0, 0, -1]], [[10.0, 20.0, 30.0]], axis=1, reduction='add'
# SCATTER_ND: A copy of an operand with slices updated, each selected by several indices.
| output = input; for every position i… of indices without the last axis:
|     output[indices[i…, 0], indices[i…, 1], …, r…] = reduction(output[…], updates[i…, r…])
indices: [i…, depth]: the last axis has indices for the first `depth` axes. Negative ones count from the end.
updates: All dimensions of `indices` except the last, then those of `input` from `depth` on.
- Updates are applied in row-major order: among equal positions the last wins with `none`, and all count otherwise.
- Indices outside are undefined: the definition raises; devices may return anything.
- The input is not modified: other operations may read it.
FLOPs: 1 per update, 0 with reduction `none`
example: counting(3, 2), [[2], [0]], [[10.0, 20.0], [30.0, 40.0]]
# TENSOR_SCATTER: A copy of a cache with updates written from a separate position for each batch item.
| output = input; output[b, …, p, …] = updates[b, …, i, …]
| p = indices[b] + i; circular: modulo the size of the axis
input: The cache, [B, …, L, …].
updates: Dimensions of `input`, with at most L positions on the axis.
indices: [B]: start position of each item; absent: 0.
axis: The axis of the positions, from 1 to rank - 1: axis 0 is the batch.
mode: `linear`: updates must fit. `circular`: the first position follows the last.
- With `linear`, positions beyond the cache are undefined.
- ONNX's negative axes have been resolved.
example: [[0.0, 0.0, 0.0]], [[1.0, 2.0]], [2], axis=1, mode='circular'
# ONE_HOT: A new axis with `on` at the index and `off` elsewhere.
| output[a…, i, b…] = values[1] if i = indices[a…, b…] (or that + depth), else values[0]
indices: Indices of any numeric type; fractions are truncated.
values: [2]: (off, on).
axis: Position of the new axis in the result, from 0 to the rank of `indices`.
depth: Size of the new axis, 1 or more.
-> output: The data type of `values`; dimensions of `indices` with `depth` inserted at the axis.
- `off` comes first.
- Negative indices count from the end; those outside -depth to depth - 1 give only `off`.
example: [0, -1, 5], [0.0, 9.0], axis=1, depth=3
# REVERSE_SEQUENCE: Sequences of a batch with their first elements reversed.
| output[b, t] = input[b, lengths[b] - 1 - t] if t < lengths[b], else input[b, t]
input: Any operand, of rank 2 or more.
lengths: [B], 0 to the size of the time axis: number of elements of each sequence to reverse.
batch_axis: The axis of the sequences, from 0 to rank - 1.
time_axis: The axis to reverse; differs from batch_axis.
- Elements after the length do not move.
- A length of 0 or 1 changes nothing.
example: counting(2, 3), [2, 3], batch_axis=0, time_axis=1
"""
