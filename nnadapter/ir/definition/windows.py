"""Convolutions and pools over windows of any rank, [N, C, …] in and out."""

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


def _windows(x: Array, counts: Sequence[int], kernel: Any, strides: Any, dilations: Any) -> Array:
    """Return `[N, C, counts…, kernel…]` of an input that was padded far enough."""
    rank = len(counts)
    for axis, count in enumerate(counts):
        places = np.arange(count)[:, None] * strides[axis] + np.arange(kernel[axis])[None, :] * dilations[axis]
        x = np.take(x, places, 2 + 2 * axis)
    return np.moveaxis(x, range(3, 3 + 2 * rank, 2), range(2 + rank, 2 + 2 * rank))


def _padded_windows(x: Array, fill: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> Array:
    sizes, rank = x.shape[2:], x.ndim - 2
    counts = _counts(sizes, kernel, strides, pads, dilations, ceil)
    reach = [
        (count - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 for axis, count in enumerate(counts)
    ]
    room = [(pads[axis], max(pads[axis + rank], reach[axis] - pads[axis] - size)) for axis, size in enumerate(sizes)]
    return _windows(np.pad(x, ((0, 0), (0, 0), *room), constant_values=fill), counts, kernel, strides, dilations)


def _pool(fill: Callable[[Array], Any], combine: Callable[..., Any]) -> Callable[..., Any]:
    """`combine` gets every window, its elements along the last axis; padding is what `fill` says."""

    def pooled(
        x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, **more: Any
    ) -> Any:
        windows = _padded_windows(x, fill(x), kernel_shape, strides, pads, dilations, ceil_mode)
        return combine(windows.reshape(*windows.shape[: x.ndim], -1), **more)

    return pooled


def _lowest(x: Array) -> Any:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


_sum_pool = _pool(lambda x: 0, lambda elements: elements.sum(-1))


def _average_pool(x: Array, *, pads: Any, count_include_pad: bool, **more: Any) -> Any:
    counted, rank = np.ones((1, 1, *x.shape[2:])), x.ndim - 2
    total = _sum_pool(x, pads=pads, **more)
    if not count_include_pad:
        return total / _sum_pool(counted, pads=pads, **more)
    # Pads that were given count; what a ceiled result reaches beyond them does not.
    counted = np.pad(counted, ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)), constant_values=1)
    count = _sum_pool(counted, pads=(0,) * 2 * rank, **more)
    return total / count[tuple(map(slice, (1, 1, *total.shape[2:])))]


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
            indices[(*plane, *window)] = offset + np.ravel_multi_index(best, sizes, order=order)  # type: ignore[call-overload]
    return [result, indices]


def _unpool(x: Array, indices: Array, output_shape: Any) -> Any:
    result = np.zeros((*x.shape[:2], *output_shape), x.dtype)
    for place in np.ndindex(x.shape):
        result.reshape(-1)[indices[place]] = x[place]
    return result


def _contracted(parts: Array, filters: Array, group: int, over: int) -> Array:
    """[N, C, places…, over axes…] times [C', O, over axes…], group by group, as [N, O, places…]."""
    ends = [range(array.ndim - over, array.ndim) for array in (parts, filters)]
    products = [
        np.tensordot(part, some, ([1, *ends[0]], [0, *ends[1]]))
        for part, some in zip(np.split(parts, group, 1), np.split(filters, group, 0), strict=True)
    ]
    return np.concatenate([np.moveaxis(product, -1, 1) for product in products], 1)


def _with_bias(result: Array, bias: Array | None) -> Array:
    return result if bias is None else result + bias.reshape(-1, *[1] * (result.ndim - 2))


def _conv(
    x: Array, weights: Array, bias: Array | None = None, *, strides: Any, pads: Any, dilations: Any, group: int
) -> Array:
    windows = _padded_windows(x, 0, weights.shape[2:], strides, pads, dilations, False)
    by_group = [part.swapaxes(0, 1) for part in np.split(weights, group, 0)]
    return _with_bias(_contracted(windows, np.concatenate(by_group), group, x.ndim - 2), bias)


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
    sizes, kernel, rank = x.shape[2:], weights.shape[2:], x.ndim - 2
    full = [
        strides[axis] * (size - 1) + (kernel[axis] - 1) * dilations[axis] + 1 + output_padding[axis]
        for axis, size in enumerate(sizes)
    ]
    result = np.zeros((len(x), weights.shape[1] * group, *full))
    for tap in np.ndindex(*kernel):
        starts = [step * dilation for step, dilation in zip(tap, dilations, strict=True)]
        where = (
            slice(start, start + stride * (size - 1) + 1, stride)
            for start, stride, size in zip(starts, strides, sizes, strict=True)
        )
        result[(slice(None), slice(None), *where)] += _contracted(x, weights[(..., *tap)], group, 0)
    inside = (slice(pads[axis], size - pads[axis + rank]) for axis, size in enumerate(full))
    return _with_bias(result[(slice(None), slice(None), *inside)], bias)


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


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "CONV": _conv,
    "MAX_POOL": _pool(_lowest, lambda elements: elements.max(-1)),
    "AVERAGE_POOL": _average_pool,
    "LP_POOL": _pool(lambda x: 0, lambda elements, p: (np.abs(elements) ** p).sum(-1) ** (1 / p)),
}
WINDOWS: Mapping[str, Callable[..., Any]] = {
    **{f"{name}_{rank}D": function for name, function in _FUNCTIONS.items() for rank in (2, 3)},
    **{f"CONV_{rank}D_TRANSPOSE": _conv_transpose for rank in (2, 3)},
    **{f"MAX_POOL_{rank}D_WITH_INDICES": _max_with_indices for rank in (2, 3)},
    "MAX_UNPOOL_2D": _unpool,
    "COL_TO_IM": _col_to_im,
}
"""By operation."""
