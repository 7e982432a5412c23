"""The functions of `tests.ir_interpreter` that look at pictures: `[N, C, H, W]` in and out, floats as float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _windows(x: Array, out: Sequence[int], kernel: Sequence[int], strides: Any, dilations: Any) -> Array:
    """Return `[N, C, out H, out W, kernel H, kernel W]`, the pictures having been padded far enough."""
    rows = np.arange(out[0])[:, None] * strides[0] + np.arange(kernel[0])[None, :] * dilations[0]
    columns = np.arange(out[1])[:, None] * strides[1] + np.arange(kernel[1])[None, :] * dilations[1]
    return x[:, :, rows[:, None, :, None], columns[None, :, None, :]]


def _extent(size: int, begin: int, end: int, kernel: int, stride: int, dilation: int, ceil: bool = False) -> int:
    room = size + begin + end - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + begin else count


def conv(
    x: Array, weights: Array, bias: Array | None = None, *, strides: Any, pads: Any, dilations: Any, group: int
) -> Array:
    out = [
        _extent(x.shape[2 + axis], pads[axis], pads[2 + axis], weights.shape[2 + axis], strides[axis], dilations[axis])
        for axis in (0, 1)
    ]
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = _windows(x, out, weights.shape[2:], strides, dilations)
    parts = [
        np.einsum("nchwij,ocij->nohw", part, filters)
        for part, filters in zip(np.split(windows, group, 1), np.split(weights, group, 0), strict=True)
    ]
    result = np.concatenate(parts, 1)
    return result if bias is None else result + bias[:, None, None]


def conv_transpose(
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
    kernel = weights.shape[2:]
    full = [
        strides[axis] * (x.shape[2 + axis] - 1) + (kernel[axis] - 1) * dilations[axis] + 1 + output_padding[axis]
        for axis in (0, 1)
    ]
    result = np.zeros((x.shape[0], weights.shape[1] * group, *full))
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            parts = [
                np.einsum("nchw,co->nohw", part, filters[:, :, row, column])
                for part, filters in zip(np.split(x, group, 1), np.split(weights, group, 0), strict=True)
            ]
            top, left = row * dilations[0], column * dilations[1]
            result[
                :,
                :,
                top : top + strides[0] * (x.shape[2] - 1) + 1 : strides[0],
                left : left + strides[1] * (x.shape[3] - 1) + 1 : strides[1],
            ] += np.concatenate(parts, 1)
    result = result[:, :, pads[0] : full[0] - pads[2], pads[1] : full[1] - pads[3]]
    return result if bias is None else result + bias[:, None, None]


def _pool_windows(x: Array, fill: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> Array:
    padded, out = [(0, 0), (0, 0)], []
    for axis in (0, 1):
        begin, end = pads[axis], pads[2 + axis]
        out.append(_extent(x.shape[2 + axis], begin, end, kernel[axis], strides[axis], dilations[axis], ceil))
        reach = (out[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        padded.append((begin, max(end, reach - begin - x.shape[2 + axis])))
    return _windows(np.pad(x, padded, constant_values=fill), out, kernel, strides, dilations)


def max_pool(x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool) -> Array:
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _pool_windows(x, lowest, kernel_shape, strides, pads, dilations, ceil_mode).max((-2, -1))


def average_pool(
    x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, count_include_pad: bool
) -> Array:
    counted = np.ones_like(x)
    if count_include_pad:  # given pads count, what a ceiled output reaches beyond them does not
        counted = np.pad(counted, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=1)
        x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
        sizes = [x.shape[2] - pads[2], x.shape[3] - pads[3]]
        pads = (0, 0, 0, 0)
        rows, columns = (
            _extent(size, 0, x.shape[2 + axis] - size, kernel_shape[axis], strides[axis], dilations[axis], ceil_mode)
            for axis, size in enumerate(sizes)
        )
    total = _pool_windows(x, 0, kernel_shape, strides, pads, dilations, ceil_mode).sum((-2, -1))
    count = _pool_windows(counted, 0, kernel_shape, strides, pads, dilations, ceil_mode).sum((-2, -1))
    average = total / count
    return average[:, :, :rows, :columns] if count_include_pad else average


def _source(length: int, out: int, scale: float, mode: str) -> Array:
    """Where each index of the resized axis lies on the original one; float32, as ONNX Runtime computes it."""
    x, factor, half = np.arange(out, dtype=np.float32), np.float32(scale), np.float32(0.5)
    if mode == "asymmetric":
        return x / factor
    if mode == "align_corners":
        return x * np.float32(length - 1) / np.float32(out - 1) if out > 1 else np.zeros_like(x)
    if mode == "pytorch_half_pixel" and out == 1:
        return np.zeros_like(x)
    spread = np.float32(out) / (factor * np.float32(length))
    shift = np.float32(length) * half * (1 - spread) if mode == "half_pixel_symmetric" else np.float32(0)
    return shift + (x + half) / factor - half


_NEAREST: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def resize_nearest(x: Array, shape: Any, scales: Any, coordinate_transformation_mode: str, nearest_mode: str) -> Array:
    for axis, (out, scale) in enumerate(zip(shape, scales, strict=True)):
        if out != x.shape[axis] or scale != 1:
            place = _NEAREST[nearest_mode](_source(x.shape[axis], out, scale, coordinate_transformation_mode))
            x = np.take(x, np.clip(place, 0, x.shape[axis] - 1).astype(int), axis)
    return x


def resize_linear(x: Array, shape: Any, scales: Any, coordinate_transformation_mode: str) -> Array:
    for axis, (out, scale) in enumerate(zip(shape, scales, strict=True)):
        if out != x.shape[axis] or scale != 1:
            place = np.clip(_source(x.shape[axis], out, scale, coordinate_transformation_mode), 0, x.shape[axis] - 1)
            low = np.floor(place).astype(int)
            high = np.minimum(low + 1, x.shape[axis] - 1)
            weight = (place - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return x


def depth_to_space(x: Array, block_size: int, mode: str) -> Array:
    n, c, h, w = x.shape
    shape = (
        (n, block_size, block_size, c // block_size**2, h, w)
        if mode == "DCR"
        else (n, c // block_size**2, block_size, block_size, h, w)
    )
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return x.reshape(shape).transpose(order).reshape(n, c // block_size**2, h * block_size, w * block_size)


def space_to_depth(x: Array, block_size: int) -> Array:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size)
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block_size**2, h // block_size, w // block_size)
