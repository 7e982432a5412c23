"""Reductions, cumulative sums and products, and extreme elements."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.row import Row, along_axis, check_axes, check_axis, family, like, per_input

row = family(cost="reduction")


def _without(type_: OperandType, axes: Sequence[int], keepdims: bool, dtype: DataType) -> OperandType:
    removed = frozenset(axes)
    if keepdims:
        return like(type_, tuple(1 if i in removed else size for i, size in enumerate(type_.dimensions)), dtype)
    return OperandType(dtype, tuple(size for i, size in enumerate(type_.dimensions) if i not in removed))


def _reduce(first: OperandType, axes: Sequence[int], keepdims: bool) -> OperandType:
    check_axes(axes, first.rank)
    return _without(first, axes, keepdims, first.dtype)


def _argument(first: OperandType, axis: int, keepdims: bool, select_last_index: bool) -> OperandType:
    check_axis(axis, first.rank)
    if first.dimensions[axis] == 0:
        raise InvalidModelError(f"input {list(first.dimensions)} has no element along axis {axis}, expected at least 1")
    return _without(first, (axis,), keepdims, DataType.INT64)


def _top_k(first: OperandType, k: int, axis: int, largest: bool, sorted: bool) -> tuple[OperandType, ...]:  # noqa: A002
    check_axis(axis, first.rank)
    if not 0 <= k <= first.dimensions[axis]:
        raise InvalidModelError(f"k is {k}, expected 0 to {first.dimensions[axis]}, the size of axis {axis}")
    dimensions = (*first.dimensions[:axis], k, *first.dimensions[axis + 1 :])
    return like(first, dimensions), like(first, dimensions, DataType.INT64)


_REDUCTIONS = {
    "REDUCE_SUM": "NNAPI REDUCE_SUM; ONNX ReduceSum-13",
    "REDUCE_MAX": "NNAPI REDUCE_MAX; ONNX ReduceMax-18",
    "REDUCE_MIN": "NNAPI REDUCE_MIN; ONNX ReduceMin-18",
    "REDUCE_PROD": "NNAPI REDUCE_PROD; ONNX ReduceProd-18",
}
_FLAGS = "exclusive: bool = False, reverse: bool = False"

_REDUCED = "(input[1..]: number; axes: ints, keepdims: bool = True)"

ROWS: tuple[Row, ...] = (
    row(
        f"REDUCE_MEAN{_REDUCED}",
        _reduce,
        lambda outputs, first, **attributes: first.size + outputs[0].size,
        "NNAPI MEAN; NNADAPTER_REDUCE_MEAN; ONNX ReduceMean-18",
        quantization="real",
    ),
    *(
        row(
            f"{type_}{_REDUCED}",
            _reduce,
            per_input(1),
            source,
        )
        for type_, source in _REDUCTIONS.items()
    ),
    *(
        row(
            f"{type_}(input[1..]: number; axis: int, keepdims: bool = True, select_last_index: bool = False)",
            _argument,
            per_input(1),
            f"{source}, data type int64",
        )
        for type_, source in (("ARG_MAX", "NNAPI ARGMAX; ONNX ArgMax-13"), ("ARG_MIN", "NNAPI ARGMIN; ONNX ArgMin-13"))
    ),
    row(
        f"CUM_SUM(input[1..]: number; axis: int, {_FLAGS})",
        along_axis,
        per_input(1),
        "NNADAPTER_CUM_SUM; ONNX CumSum-14",
    ),
    row(f"CUM_PROD(input[1..]: number; axis: int, {_FLAGS})", along_axis, per_input(1), "ONNX CumProd-26"),
    row(
        "TOP_K(input[1..]: number; k: int, axis: int, largest: bool = True, sorted: bool = True -> values, indices)",
        _top_k,
        # one pass with a heap of k elements
        lambda outputs, first, k, **attributes: first.size * max(1, k.bit_length()),
        "NNAPI TOPK_V2; ONNX TopK-11; indices are int64",
    ),
    row(
        "HARDMAX(input[1..]: float; axis: int)",
        along_axis,
        per_input(1),
        "ONNX Hardmax-13: 1 at the first of the largest elements, 0 elsewhere",
    ),
)
