"""Operations that select, pad or write elements at positions."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import (
    Row,
    check_axis,
    check_dimensions,
    check_indices,
    check_length,
    check_vector,
    family,
    like,
)
from nnadapter.ir.symbolic_numbers import symbolic_max, symbolic_min

row = family(cost="movement")
Ints = Sequence[int]


def _plain(type_: OperandType, *dimensions: int) -> OperandType:
    return OperandType(type_.dtype, dimensions)


def _slice(first: OperandType, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> OperandType:
    check_length(len(axes), starts=starts, ends=ends, steps=steps)
    if len(frozenset(axes)) != len(axes):
        raise InvalidModelError(f"axes is {list(axes)}, expected no duplicates")
    dimensions = list(first.dimensions)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        dimensions[axis] = _slice_size(axis, dimensions[check_axis(axis, first.rank)], start, end, step)
    return like(first, tuple(dimensions))


def _slice_size(axis: int, size: int, start: int, end: int, step: int) -> int:
    if step == 0:
        raise InvalidModelError(f"the step along axis {axis} is 0, expected another value")
    # -(size + 1) is an end before the first element; numpy would read -1 as the last one.
    if not 0 <= start <= size or not (0 <= end <= size or (step < 0 and end == -(size + 1))):
        raise InvalidModelError(
            f"the slice along axis {axis} is {start}:{end}:{step}, expected start and end in 0 to {size}"
            f"{f', or end {-(size + 1)}' if step < 0 else ''}"
        )
    if step > 0:
        return symbolic_max(-(-(end - start) // step), 0)
    first, last = symbolic_min(start, size - 1), symbolic_max(end, -1)
    return symbolic_max(-((last - first) // -step), 0)


def _gather(first: OperandType, indices: OperandType, axis: int) -> OperandType:
    check_axis(axis, first.rank)
    return _plain(first, *first.dimensions[:axis], *indices.dimensions, *first.dimensions[axis + 1 :])


def _gather_elements(first: OperandType, indices: OperandType, axis: int) -> OperandType:
    check_indices(indices, first, check_axis(axis, first.rank))
    return like(first, indices.dimensions)


def _pad(first: OperandType, mode: str, pads: Ints, value: float) -> OperandType:
    # pads = [begin of every axis…, end of every axis…]; negative values crop
    check_length(2 * first.rank, pads=pads)
    sizes = zip(first.dimensions, pads[: first.rank], pads[first.rank :], strict=True)
    return like(first, tuple(_padded(mode, axis, *sizes_) for axis, sizes_ in enumerate(sizes)))


def _padded(mode: str, axis: int, size: int, begin: int, end: int) -> int:
    cropped = size + min(begin, 0) + min(end, 0)
    if cropped < 0:
        raise InvalidModelError(f"pads {begin} and {end} crop more than the {size} elements of axis {axis}")
    most = max(begin, end)
    limit = {"constant": most, "reflect": cropped - 1}.get(mode, most if cropped else 0)
    if most > max(limit, 0):
        raise InvalidModelError(
            f"pads along axis {axis} are {begin} and {end}, "
            f"expected at most {max(limit, 0)} in mode {mode!r} on {cropped} elements"
        )
    return cropped + max(begin, 0) + max(end, 0)


def _index_depth(indices: OperandType, available: int) -> int:
    if indices.rank < 1:
        raise InvalidModelError("indices is a scalar, expected rank 1 or more")
    depth = indices.dimensions[-1]
    if not 0 <= depth <= available:
        raise InvalidModelError(
            f"the last dimension of indices is {depth}, expected at most {available}, the number of axes to index"
        )
    return depth.__index__()


def _gather_nd(first: OperandType, indices: OperandType, batch_dims: int) -> OperandType:
    limit = min(first.rank, indices.rank)
    if not 0 <= batch_dims < limit:
        raise InvalidModelError(
            f"batch_dims is {batch_dims}, expected 0 or more and less than {limit}, the smaller rank"
        )
    if first.dimensions[:batch_dims] != indices.dimensions[:batch_dims]:
        raise InvalidModelError(
            f"input {list(first.dimensions)} and indices {list(indices.dimensions)} differ in their first "
            f"{batch_dims} dimensions, expected equal ones"
        )
    depth = _index_depth(indices, first.rank - batch_dims)
    return _plain(first, *indices.dimensions[:-1], *first.dimensions[batch_dims + depth :])


def _scatter_elements(
    first: OperandType, indices: OperandType, updates: OperandType, axis: int, reduction: str
) -> OperandType:
    check_indices(indices, first, check_axis(axis, first.rank))
    check_dimensions("updates", updates, indices.dimensions)
    return _plain(first, *first.dimensions)


def _scatter_nd(first: OperandType, indices: OperandType, updates: OperandType, reduction: str) -> OperandType:
    depth = _index_depth(indices, first.rank)
    check_dimensions("updates", updates, (*indices.dimensions[:-1], *first.dimensions[depth:]))
    return _plain(first, *first.dimensions)


def _tensor_scatter(
    first: OperandType, updates: OperandType, indices: OperandType | None = None, *, axis: int, mode: str
) -> OperandType:
    check_axis(axis, first.rank)
    if axis == 0:
        raise InvalidModelError("axis is 0, expected another one: the first axis is that of the batch")
    expected = list(first.dimensions)
    if updates.rank == first.rank:
        expected[axis] = updates.dimensions[axis]
    check_dimensions("updates", updates, tuple(expected))
    if expected[axis] > first.dimensions[axis]:
        raise InvalidModelError(
            f"updates has {expected[axis]} elements along axis {axis}, expected at most {first.dimensions[axis]}"
        )
    check_vector("indices", indices, first.dimensions[0])
    return _plain(first, *first.dimensions)


def _one_hot(indices: OperandType, values: OperandType, axis: int, depth: int) -> OperandType:
    check_vector("values", values, 2)
    check_axis(axis, indices.rank + 1)
    if depth < 1:
        raise InvalidModelError(f"depth is {depth}, expected 1 or more")
    return _plain(values, *indices.dimensions[:axis], depth, *indices.dimensions[axis:])


def _reverse_sequence(first: OperandType, lengths: OperandType, batch_axis: int, time_axis: int) -> OperandType:
    for axis in (batch_axis, time_axis):
        check_axis(axis, first.rank)
    if batch_axis == time_axis:
        raise InvalidModelError(f"batch_axis and time_axis are both {batch_axis}, expected two axes")
    check_vector("lengths", lengths, first.dimensions[batch_axis])
    return _plain(first, *first.dimensions)


def _per_update(outputs: Sequence[OperandType], *types: OperandType, reduction: str, **attributes: object) -> int:
    return 0 if reduction == "none" else types[2].size


_UPDATED = "input[1..], indices: index, updates as input"
_REDUCTION = "reduction: string(none|add|mul|max|min) = none"

ROWS: tuple[Row, ...] = (
    row(
        "SLICE(input; starts: ints, ends: ints, axes: ints, steps: ints)",
        _slice,
        0,
        "NNAPI STRIDED_SLICE; NNADAPTER_SLICE; ONNX Slice-13, normalized as for Python's slice",
        quantization="moves",
    ),
    row(
        "GATHER(input[1..], indices: index; axis: int)",
        _gather,
        0,
        "NNAPI GATHER; ONNX Gather-13; negative indices count from the end",
        quantization="moves",
    ),
    row(
        "GATHER_ELEMENTS(input[1..], indices: index; axis: int)",
        _gather_elements,
        0,
        "ONNX GatherElements-13; negative indices count from the end",
        quantization="moves",
    ),
    row(
        "PAD(input; mode: string(constant|reflect|edge|wrap) = constant, pads: ints, value: float = 0.0)",
        _pad,
        0,
        "NNAPI PAD_V2, MIRROR_PAD; ONNX Pad-21",
        quantization="moves",
    ),
    row(
        "GATHER_ND(input[1..], indices: index; batch_dims: int = 0)",
        _gather_nd,
        0,
        "ONNX GatherND-13; negative indices count from the end",
    ),
    row(
        f"SCATTER_ELEMENTS({_UPDATED}; axis: int, {_REDUCTION})",
        _scatter_elements,
        _per_update,
        "ONNX ScatterElements-18; negative indices count from the end; among equal ones the last wins",
    ),
    row(
        f"SCATTER_ND({_UPDATED}; {_REDUCTION})",
        _scatter_nd,
        _per_update,
        "ONNX ScatterND-18; negative indices count from the end; among equal ones the last wins",
    ),
    row(
        "TENSOR_SCATTER(input[2..], updates as input, indices?: index; "
        "axis: int, mode: string(linear|circular) = linear)",
        _tensor_scatter,
        0,
        "ONNX TensorScatter-24: a cache [B, …, L, …] written from one position per batch on",
    ),
    row(
        "ONE_HOT(indices: number, values; axis: int, depth: int)",
        _one_hot,
        0,
        "ONNX OneHot-11; values = [off, on]; negative indices count from the end, others outside give only off",
    ),
    row(
        "REVERSE_SEQUENCE(input[2..], lengths: index; batch_axis: int, time_axis: int)",
        _reverse_sequence,
        0,
        "ONNX ReverseSequence-10; elements after a sequence's length do not move",
    ),
)
