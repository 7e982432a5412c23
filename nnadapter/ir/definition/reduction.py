"""Reference implementations: reductions, cumulative sums and products, the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Array, axes: Any, keepdims: bool) -> Array:
        return np.asarray(function(x, axis=tuple(axes), keepdims=keepdims))

    return reduced


def _mean(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.trunc(x.mean(axis, keepdims=keepdims)) if x.dtype.kind in "iu" else x.mean(axis, keepdims=keepdims)


def _largest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.max(axis, keepdims=keepdims, initial=-np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)


def _smallest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.min(axis, keepdims=keepdims, initial=np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max)


def _cum_sum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = total - x
    return np.flip(total, axis) if reverse else total


def _cum_prod(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        ones = np.ones_like(np.take(x, [0], axis))
        x = np.concatenate([ones, np.delete(x, -1, axis)], axis)
    total = np.cumprod(x, axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _top_k(x: Array, k: int, axis: int, largest: bool, sorted: bool) -> list[Array]:  # noqa: A002
    if largest:  # lower index first among equals: reverse a stable sort of the flipped axis
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, chosen, axis), chosen]


def _hardmax(x: Array, axis: int) -> Array:
    rows = np.moveaxis(x, axis, -1)
    chosen = np.eye(rows.shape[-1])[np.argmax(rows, -1)]
    return np.moveaxis(chosen, -1, axis)


def _place_of(name: str) -> Callable[..., Any]:
    def argument(xp: Any, x: Any, axis: int, keepdims: bool, select_last_index: bool) -> Any:
        function = getattr(xp, name)
        if select_last_index:
            return x.shape[axis] - 1 - function(xp.flip(x, axis), axis, keepdims=keepdims)
        return function(x, axis, keepdims=keepdims)

    return argument


SHARED: Mapping[str, Callable[..., Any]] = {"ARG_MAX": _place_of("argmax"), "ARG_MIN": _place_of("argmin")}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "REDUCE_MEAN": _reduce(_mean),
    "REDUCE_SUM": _reduce(np.sum),
    "REDUCE_MAX": _reduce(_largest),
    "REDUCE_MIN": _reduce(_smallest),
    "REDUCE_PROD": _reduce(np.prod),
    "CUM_SUM": _cum_sum,
    "TOP_K": _top_k,
    "CUM_PROD": _cum_prod,
    "HARDMAX": _hardmax,
}

DOCS = """\
# *
input: The numbers.
axes: Axes to reduce: ascending, distinct, at least one, from 0 to rank - 1.
keepdims: True: reduced axes stay with size 1. False: they are removed.
-> output: The data type of `input`; reduced axes have size 1, or are removed.
reverse: True: accumulate from the end of the axis. Elements keep their positions.
example: counting(2, 3), axes=(1,), keepdims=False
# REDUCE_MEAN: The mean over axes.
| output = (sum of input over axes) / number of elements
- The mean of integers is truncated toward 0.
- The mean of no elements is NaN, for integers undefined.
- `axes` is never empty: ONNX's reduction over no axes becomes one over all axes, or ASSIGN.
FLOPs: 1 per input element, plus 1 per output element
# REDUCE_SUM: The sum over axes.
| output = sum of input over axes
- Integers wrap around in their own data type: accumulate int32 in int32.
- The sum of no elements is 0.
- `axes` is never empty: ONNX's reduction over no axes becomes one over all axes, or ASSIGN.
# REDUCE_MAX: The largest element over axes.
| output = max of input over axes
- No elements give -inf, or the smallest integer. A NaN among the elements gives NaN.
- `axes` is never empty: ONNX's reduction over no axes becomes one over all axes, or ASSIGN.
# REDUCE_MIN: The smallest element over axes.
| output = min of input over axes
- No elements give inf, or the largest integer. A NaN among the elements gives NaN.
- `axes` is never empty: ONNX's reduction over no axes becomes one over all axes, or ASSIGN.
# REDUCE_PROD: The product over axes.
| output = product of input over axes
- Integers wrap around.
- The product of no elements is 1.
- `axes` is never empty: ONNX's reduction over no axes becomes one over all axes, or ASSIGN.
# ARG_MAX: The index of the largest element along an axis.
| output[…] = i with input[…, i, …] the largest
select_last_index: Among equal largest elements, true selects the last, false the first.
-> output: int64: indices along the axis, from 0. The axis has size 1, or is removed.
- The axis must not be empty.
- With select_last_index, indices still count from the front.
- The definition treats NaN as the largest element.
example: [[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]], axis=1, keepdims=False
# ARG_MIN: The index of the smallest element along an axis.
| output[…] = i with input[…, i, …] the smallest
select_last_index: Among equal smallest elements, true selects the last, false the first.
-> output: int64: indices along the axis, from 0. The axis has size 1, or is removed.
- The axis must not be empty.
- With select_last_index, indices still count from the front.
- The definition treats NaN as the smallest element.
example: [[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]], axis=1, keepdims=False
# CUM_SUM: Cumulative sums along an axis.
| output[…, i, …] = sum of input[…, j, …] for j <= i
| exclusive: for j < i. reverse: for j >= i, or j > i
input: The summands.
exclusive: True: exclude the element itself; the first one (with reverse, the last) is 0.
-> output: Data type, dimensions and layout of `input`.
- Integers wrap around.
example: counting(4), axis=0, exclusive=True, reverse=True
# CUM_PROD: Cumulative products along an axis.
| output[…, i, …] = product of input[…, j, …] for j <= i
| exclusive: for j < i. reverse: for j >= i, or j > i
input: The factors.
exclusive: True: exclude the element itself; the first one (with reverse, the last) is 1.
-> output: Data type, dimensions and layout of `input`.
- Integers wrap around.
example: counting(4), axis=0, exclusive=True, reverse=True
# TOP_K: The k largest or smallest elements along an axis, with their indices.
| values, indices = the first k along the axis of (input, index) in order
k: Number of elements, from 0 to the size of the axis.
largest: True: the largest, in descending order. False: the smallest, in ascending order.
sorted: False: the order of the k elements is arbitrary. The definition always sorts.
-> values: The data type of `input`; the axis has size k.
-> indices: int64, dimensions of `values`: indices along the axis.
- Among equal elements, the lower index comes first, for the largest and for the smallest.
- NaN counts as larger than everything.
FLOPs: max(1, binary digits of k) per input element
example: [[1.0, 3.0, 2.0, 3.0]], k=3, axis=1
# HARDMAX: 1 at the largest element along an axis, 0 at the others.
| output[…, i, …] = 1 if i is the first index of max(input[…, :, …]), else 0
-> output: Data type, dimensions and layout of `input`.
- Among equal elements, the first gets the 1.
- NaN counts as the largest.
example: [[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]], axis=1
"""
