"""Resizing, axis by axis: nearest neighbors by copying, linear by weighing two neighbors.

Source: ONNX Resize, whose formulas map a place in the result back to one in the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel
from nnadapter.ir.operand import Array

CoordinateRule = Callable[[Array, np.float32, int, int], Array]
"""Places in the result, scale, sizes of input and result -> places in the input."""


def _half_pixel(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return (place + np.float32(0.5)) / scale - np.float32(0.5)


def _half_pixel_symmetric(place: Array, scale: np.float32, size: int, result: int) -> Array:
    # The result's size was rounded down from size * scale; both ends share the loss.
    adjustment = np.float32(result) / (scale * np.float32(size))
    offset = np.float32(size) / np.float32(2) * (np.float32(1) - adjustment)
    # In this order, as in ONNX's formula: another one rounds some whole numbers down.
    return offset + (place + np.float32(0.5)) / scale - np.float32(0.5)


def _pytorch_half_pixel(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return _half_pixel(place, scale, size, result) if result > 1 else np.zeros_like(place)


def _align_corners(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return place * np.float32(size - 1) / np.float32(result - 1) if result > 1 else np.zeros_like(place)


COORDINATES: Mapping[str, CoordinateRule] = {
    "align_corners": _align_corners,
    "asymmetric": lambda place, scale, size, result: place / scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
}
"""By ONNX's coordinate_transformation_mode."""

_ALMOST = 1e-6
ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    # Half is compared, not added, since 3.4999998 + 0.5 is 4 in float32. A place just short of half counts as half
    # if half goes up: so does ONNX Runtime.
    "round_prefer_ceil": lambda place: np.floor(place) + (place - np.floor(place) >= 0.5 - _ALMOST),
    "round_prefer_floor": lambda place: np.floor(place) + (place - np.floor(place) > 0.5),
}
"""By ONNX's nearest_mode."""


def _places(size: int, result: int, scale: float, mode: str) -> Array:
    """Return the place in the input of every index of the result along one axis, in float32.

    Computed in float32 as by ONNX Runtime: the nearest pixel depends on the last bit of `1 / 0.33333334`.
    """
    rule = COORDINATES[mode]
    return rule(np.arange(result, dtype=np.float32), np.float32(scale), size, result).astype(np.float32)


def _resized_axes(x: Sequence[int], out: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Return the axes that change, those that shrink most first."""
    resized = [axis for axis, size in enumerate(x) if size != out[axis] or scales[axis] != 1]
    return sorted(resized, key=lambda axis: out[axis] / x[axis])


def resize_nearest(
    out: Array, x: Array, *, scales: Sequence[float], coordinate_transformation_mode: str, nearest_mode: str
) -> None:
    """Copy the nearest element to each place of the result."""
    for axis in _resized_axes(x.shape, out.shape, scales):
        places = _places(x.shape[axis], out.shape[axis], scales[axis], coordinate_transformation_mode)
        nearest = np.clip(ROUNDINGS[nearest_mode](places), 0, x.shape[axis] - 1).astype(np.intp)
        x = np.take(x, nearest, axis=axis)
    np.copyto(out, x)


def resize_linear(out: Array, x: Array, *, scales: Sequence[float], coordinate_transformation_mode: str) -> None:
    """Weigh the two neighbors of each place along every axis; places outside take the edge."""
    for axis in _resized_axes(x.shape, out.shape, scales):
        size = x.shape[axis]
        places = np.clip(_places(size, out.shape[axis], scales[axis], coordinate_transformation_mode), 0, size - 1)
        below = np.minimum(np.floor(places).astype(np.intp), max(size - 2, 0))
        weight = (places - below).astype(out.dtype).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        lower, upper = np.take(x, below, axis=axis), np.take(x, np.minimum(below + 1, size - 1), axis=axis)
        upper -= lower
        upper *= weight
        x = np.add(lower, upper, lower)
    np.copyto(out, x)


KERNELS: Mapping[str, NumpyKernel] = {
    "resize_linear": NumpyKernel(resize_linear),
    "resize_nearest": NumpyKernel(resize_nearest),
}
"""Rows of the kernel table."""
