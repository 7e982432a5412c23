"""Reductions, running sums, and the search for extreme elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, per_input, present, row
from nnadapter.ir.operations.shape_rules import along_axis, check_axis
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = (Role("input", NUMERIC),)
_AXIS = Attribute("axis", AttributeKind.INT)
_KEEPDIMS = Attribute("keepdims", AttributeKind.BOOL, True)


def _without(type_: OperandType, axes: Sequence[int], keepdims: object, dtype: DataType) -> tuple[OperandType, ...]:
    gone = frozenset(axes)
    if keepdims:
        return (like(type_, tuple(1 if i in gone else size for i, size in enumerate(type_.dimensions)), dtype),)
    return (OperandType(dtype, tuple(size for i, size in enumerate(type_.dimensions) if i not in gone)),)


def _reduce(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axes = integers(attributes, "axes")
    if not axes or any(left >= right for left, right in pairwise(axes)):
        raise InvalidModelError(f"axes is {list(axes)}, expected at least one, ascending, none twice")
    for axis in axes:
        check_axis(axis, first.rank)
    return _without(first, axes, attributes["keepdims"], first.dtype)


def _argument(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    if first.dimensions[axis] == 0:
        raise InvalidModelError(
            f"input {list(first.dimensions)} has no element along axis {axis}, expected one or more"
        )
    return _without(first, (axis,), attributes["keepdims"], DataType.INT64)


def _top_k(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    k = integer(attributes, "k")
    if not 0 <= k <= first.dimensions[axis]:
        raise InvalidModelError(f"k is {k}, expected 0 to {first.dimensions[axis]}, the size of axis {axis}")
    dimensions = (*first.dimensions[:axis], k, *first.dimensions[axis + 1 :])
    return like(first, dimensions), like(first, dimensions, DataType.INT64)


def _mean_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    return present(types, 0).size + outputs[0].size


def _top_k_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # One pass over the input with a heap of k elements.
    return present(types, 0).size * max(1, integer(attributes, "k").bit_length())


_REDUCTIONS = (
    ("REDUCE_MEAN", "NNAPI MEAN; NNADAPTER_REDUCE_MEAN; ONNX ReduceMean-18"),
    ("REDUCE_SUM", "NNAPI REDUCE_SUM; ONNX ReduceSum-13"),
    ("REDUCE_MAX", "NNAPI REDUCE_MAX; ONNX ReduceMax-18"),
    ("REDUCE_MIN", "NNAPI REDUCE_MIN; ONNX ReduceMin-18"),
    ("REDUCE_PROD", "NNAPI REDUCE_PROD; ONNX ReduceProd-18"),
)
_ARGUMENTS = (("ARG_MAX", "NNAPI ARGMAX; ONNX ArgMax-13"), ("ARG_MIN", "NNAPI ARGMIN; ONNX ArgMin-13"))

ROWS: tuple[OperationSchema, ...] = (
    *(
        row(
            type_,
            _INPUT,
            _reduce,
            _mean_flops if type_ == "REDUCE_MEAN" else per_input(1),
            source,
            attributes=(Attribute("axes", AttributeKind.INTS), _KEEPDIMS),
            ranks=(1, 64),
        )
        for type_, source in _REDUCTIONS
    ),
    *(
        row(
            type_,
            _INPUT,
            _argument,
            per_input(1),
            f"{source}, data type int64",
            attributes=(_AXIS, _KEEPDIMS, Attribute("select_last_index", AttributeKind.BOOL, False)),
            ranks=(1, 64),
        )
        for type_, source in _ARGUMENTS
    ),
    row(
        "CUM_SUM",
        _INPUT,
        along_axis,
        per_input(1),
        "NNADAPTER_CUM_SUM; ONNX CumSum-14",
        attributes=(
            _AXIS,
            Attribute("exclusive", AttributeKind.BOOL, False),
            Attribute("reverse", AttributeKind.BOOL, False),
        ),
        ranks=(1, 64),
    ),
    row(
        "TOP_K",
        _INPUT,
        _top_k,
        _top_k_flops,
        "NNAPI TOPK_V2; ONNX TopK-11; indices are int64",
        attributes=(
            Attribute("k", AttributeKind.INT),
            _AXIS,
            Attribute("largest", AttributeKind.BOOL, True),
            Attribute("sorted", AttributeKind.BOOL, True),
        ),
        outputs=("values", "indices"),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
