"""The functions of `tests.ir_interpreter` over windows of any rank, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _count(size: int, begin: int, end: int, kernel: int, stride: int, dilation: int, ceil: bool) -> int:
    room = size + begin + end - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + begin else count


def _counts(sizes: Sequence[int], kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> list[int]:
    rank = len(sizes)
    return [
        _count(size, pads[axis], pads[axis + rank], kernel[axis], strides[axis], dilations[axis], ceil)
        for axis, size in enumerate(sizes)
    ]


def _places(window: Sequence[int], kernel: Any, strides: Any, pads: Any, dilations: Any) -> Iterator[tuple[Any, Any]]:
    """Every tap of one window, and its place in the input, which may lie outside."""
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(window[axis] * strides[axis] + step * dilations[axis] - pads[axis] for axis, step in enumerate(tap)),
        )


def _inside(place: Sequence[int], sizes: Sequence[int]) -> bool:
    return all(0 <= index < size for index, size in zip(place, sizes, strict=True))


def _pool(combine: Callable[..., Any]) -> Callable[..., Any]:
    """`combine` gets the elements of a window, [N, C, elements], and how many it has with and without padding."""

    def pooled(
        x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, **more: Any
    ) -> Array:
        sizes, rank = x.shape[2:], x.ndim - 2
        counts = _counts(sizes, kernel_shape, strides, pads, dilations, ceil_mode)
        result = np.zeros((*x.shape[:2], *counts), x.dtype)
        for window in np.ndindex(*counts):
            places = [place for _, place in _places(window, kernel_shape, strides, pads, dilations)]
            found = [x[(slice(None), slice(None), *place)] for place in places if _inside(place, sizes)]
            padded = [
                all(-pads[axis] <= index < sizes[axis] + pads[axis + rank] for axis, index in enumerate(place))
                for place in places
            ]
            result[(slice(None), slice(None), *window)] = combine(np.stack(found, -1), sum(padded), **more)
        return result

    return pooled


def _average(elements: Array, padded: int, count_include_pad: bool) -> Array:
    return elements.sum(-1) / (padded if count_include_pad else elements.shape[-1])


def _norm(elements: Array, padded: int, p: int) -> Array:
    return (np.abs(elements) ** p).sum(-1) ** (1 / p)


def _max_with_indices(
    x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, storage_order: str
) -> list[Array]:
    sizes = x.shape[2:]
    counts = _counts(sizes, kernel_shape, strides, pads, dilations, ceil_mode)
    result, indices = np.zeros((*x.shape[:2], *counts), x.dtype), np.zeros((*x.shape[:2], *counts), np.int64)
    order = "C" if storage_order == "row_major" else "F"
    for plane in np.ndindex(*x.shape[:2]):
        offset = (plane[0] * x.shape[1] + plane[1]) * int(np.prod(sizes))
        for window in np.ndindex(*counts):
            places = [place for _, place in _places(window, kernel_shape, strides, pads, dilations)]
            best = max((place for place in places if _inside(place, sizes)), key=lambda place: x[(*plane, *place)])
            result[(*plane, *window)] = x[(*plane, *best)]
            indices[(*plane, *window)] = offset + np.ravel_multi_index(best, sizes, order=order)
    return [result, indices]


def _unpool(x: Array, indices: Array, output_shape: Any) -> Array:
    result = np.zeros((*x.shape[:2], *output_shape), x.dtype)
    for place in np.ndindex(x.shape):
        result.reshape(-1)[indices[place]] = x[place]
    return result


def _conv(
    x: Array, weights: Array, bias: Array | None = None, *, strides: Any, pads: Any, dilations: Any, group: int
) -> Array:
    kernel, sizes, per_group = weights.shape[2:], x.shape[2:], len(weights) // group
    counts = _counts(sizes, kernel, strides, pads, dilations, False)
    result = np.zeros((len(x), len(weights), *counts))
    for window in np.ndindex(*counts):
        for tap, place in _places(window, kernel, strides, pads, dilations):
            if not _inside(place, sizes):
                continue
            for output in range(len(weights)):
                first = output // per_group * weights.shape[1]
                channels = x[(slice(None), slice(first, first + weights.shape[1]), *place)]
                result[(slice(None), output, *window)] += channels @ weights[(output, slice(None), *tap)]
    return result if bias is None else result + bias.reshape(-1, *[1] * len(sizes))


def _conv_transpose(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    output_padding: Any,
) -> Array:
    kernel, rank, per_group = weights.shape[2:], x.ndim - 2, x.shape[1] // group
    sizes = [
        strides[axis] * (x.shape[2 + axis] - 1)
        + (kernel[axis] - 1) * dilations[axis]
        + 1
        + output_padding[axis]
        - pads[axis]
        - pads[axis + rank]
        for axis in range(rank)
    ]
    result = np.zeros((len(x), weights.shape[1] * group, *sizes))
    for window in np.ndindex(*x.shape[2:]):
        for tap, place in _places(window, kernel, strides, pads, dilations):
            if not _inside(place, sizes):
                continue
            for channel in range(x.shape[1]):
                first = channel // per_group * weights.shape[1]
                product = np.outer(x[(slice(None), channel, *window)], weights[(channel, slice(None), *tap)])
                result[(slice(None), slice(first, first + weights.shape[1]), *place)] += product
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _col_to_im(x: Array, *, image_shape: Any, kernel_shape: Any, strides: Any, pads: Any, dilations: Any) -> Array:
    counts = _counts(image_shape, kernel_shape, strides, pads, dilations, False)
    columns = x.reshape(len(x), -1, *kernel_shape, *counts)
    result = np.zeros((*columns.shape[:2], *image_shape))
    for window in np.ndindex(*counts):
        for tap, place in _places(window, kernel_shape, strides, pads, dilations):
            if _inside(place, image_shape):
                where = (slice(None), slice(None))
                result[(*where, *place)] += columns[(*where, *tap, *window)]
    return result


WINDOW_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "CONV_3D": _conv,
    "CONV_3D_TRANSPOSE": _conv_transpose,
    "MAX_POOL_3D": _pool(lambda elements, padded: elements.max(-1)),
    "AVERAGE_POOL_3D": _pool(_average),
    "LP_POOL_2D": _pool(_norm),
    "LP_POOL_3D": _pool(_norm),
    "MAX_POOL_2D_WITH_INDICES": _max_with_indices,
    "MAX_POOL_3D_WITH_INDICES": _max_with_indices,
    "MAX_UNPOOL_2D": _unpool,
    "COL_TO_IM": _col_to_im,
}
"""Rows for the interpreter's table."""
