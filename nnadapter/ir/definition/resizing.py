"""What gives pictures another size: `[N, C, H, W]` in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


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


def _resize_nearest(x: Array, shape: Any, scales: Any, coordinate_transformation_mode: str, nearest_mode: str) -> Array:
    for axis, (out, scale) in enumerate(zip(shape, scales, strict=True)):
        if out != x.shape[axis] or scale != 1:
            place = _NEAREST[nearest_mode](_source(x.shape[axis], out, scale, coordinate_transformation_mode))
            x = np.take(x, np.clip(place, 0, x.shape[axis] - 1).astype(int), axis)
    return x


def _resize_linear(x: Array, shape: Any, scales: Any, coordinate_transformation_mode: str) -> Array:
    for axis, (out, scale) in enumerate(zip(shape, scales, strict=True)):
        if out != x.shape[axis] or scale != 1:
            place = np.clip(_source(x.shape[axis], out, scale, coordinate_transformation_mode), 0, x.shape[axis] - 1)
            low = np.floor(place).astype(int)
            high = np.minimum(low + 1, x.shape[axis] - 1)
            weight = (place - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return x


def _depth_to_space(x: Array, block_size: int, mode: str) -> Array:
    n, c, h, w = x.shape
    shape = (
        (n, block_size, block_size, c // block_size**2, h, w)
        if mode == "DCR"
        else (n, c // block_size**2, block_size, block_size, h, w)
    )
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return x.reshape(shape).transpose(order).reshape(n, c // block_size**2, h * block_size, w * block_size)


def _space_to_depth(x: Array, block_size: int) -> Array:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size)
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block_size**2, h // block_size, w // block_size)


RESIZING: Mapping[str, Callable[..., Any]] = {
    "RESIZE_NEAREST": _resize_nearest,
    "RESIZE_LINEAR": _resize_linear,
    "DEPTH_TO_SPACE": _depth_to_space,
    "SPACE_TO_DEPTH": _space_to_depth,
}
"""By operation."""
