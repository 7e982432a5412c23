"""What reads images between their pixels, place by place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _reflect(place: float, low: float, high: float) -> float:
    while not low <= place <= high and high > low:
        place = 2 * low - place if place < low else 2 * high - place
    return place if high > low else low


def _cubic(distance: float) -> float:
    d, a = abs(distance), -0.75
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


def _along(place: float, size: int, mode: str, padding: str, low: float, high: float) -> list[tuple[int, float]]:
    """Indices and weights along one axis."""
    if padding == "reflection":
        place = _reflect(place, low, high)
    first = floor(place)
    weighted_indices = {
        "nearest": [(round(place), 1.0)],
        "linear": [(first + step, 1 - abs(place - first - step)) for step in (0, 1)],
        "cubic": [(first + step, _cubic(place - first - step)) for step in (-1, 0, 1, 2)],
    }[mode]
    if padding == "zeros":
        return [(index, weight) for index, weight in weighted_indices if 0 <= index < size]
    if padding == "reflection":
        weighted_indices = [(int(_reflect(index, low, high)), weight) for index, weight in weighted_indices]
    return [(min(max(index, 0), size - 1), weight) for index, weight in weighted_indices]


def _weigh(image: Array, axes: Sequence[list[tuple[int, float]]]) -> Array:
    total = np.zeros(len(image))
    for neighbors in product(*axes):
        index, weight = zip(*neighbors, strict=True)
        total = total + image[(slice(None), *index)] * np.prod(weight)
    return total


def _grid_sample(x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    result = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for batch, *place in np.ndindex(grid.shape[:-1]):
        axes = []
        for size, value in zip(x.shape[2:], grid[(batch, *place)][::-1], strict=True):
            low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
            pixel = (value + 1) / 2 * (size - 1) if align_corners else ((value + 1) * size - 1) / 2
            axes.append(_along(round(pixel) if mode == "nearest" else pixel, size, mode, padding_mode, low, high))
        result[(batch, slice(None), *place)] = _weigh(x[batch], axes)
    return result


def _affine_grid(theta: Array, output_shape: Any, align_corners: bool) -> Array:
    result = np.zeros((len(theta), *output_shape, len(output_shape)))
    for batch, *place in np.ndindex(len(theta), *output_shape):
        position = [
            -1 + 2 * index / (size - 1) if align_corners else (2 * index + 1) / size - 1
            for index, size in zip(place, output_shape, strict=True)
        ]
        result[(batch, *place)] = theta[batch] @ np.array([*position[::-1], 1.0])
    return result


def _samples(start: float, length: float, bins: int, ratio: int) -> list[list[float]]:
    count = ratio or max(0, ceil(length / bins))
    return [
        [start + (bin_index + (step + 0.5) / count) * length / bins for step in range(count)]
        for bin_index in range(bins)
    ]


def _roi_align(
    x: Array,
    regions: Array,
    numbers: Array,
    output_shape: Any,
    spatial_scale: float,
    sampling_ratio: int,
    mode: str,
    half_pixel: bool,
) -> Array:
    result = np.zeros((len(regions), x.shape[1], *output_shape))
    for index, (region, number) in enumerate(zip(regions, numbers, strict=True)):
        left, top, right, bottom = region * spatial_scale - (0.5 if half_pixel else 0)
        least = -np.inf if half_pixel else 1.0
        rows = _samples(top, max(bottom - top, least), output_shape[0], sampling_ratio)
        columns = _samples(left, max(right - left, least), output_shape[1], sampling_ratio)
        for row, column in np.ndindex(*output_shape):
            places = list(product(rows[row], columns[column]))
            if places:
                parts = np.array([_corners(x[number], *place) for place in places])
                best = parts.max((0, 1)) if mode == "max" else parts.sum(1).mean(0)
                result[index, :, row, column] = best
    return result


def _corners(image: Array, row: float, column: float) -> Array:
    """The four neighbors of a place, weighed, [4, C]."""
    height, width = image.shape[1:]
    if not (-1 <= row <= height and -1 <= column <= width):
        return np.zeros((4, len(image)))
    row, column = min(max(row, 0), height - 1), min(max(column, 0), width - 1)
    pairs = []
    for place, size in ((row, height), (column, width)):
        low = floor(place)
        pairs.append([(low, 1 - place + low), (min(low + 1, size - 1), place - low)])
    return np.stack([image[:, r, c] * (a * b) for (r, a), (c, b) in product(*pairs)])


def _max_roi_pool(x: Array, regions: Array, output_shape: Any, spatial_scale: float) -> Array:
    result = np.zeros((len(regions), x.shape[1], *output_shape))
    for index, (number, *corners) in enumerate(regions):
        left, top, right, bottom = (floor(abs(c) * spatial_scale + 0.5) * (-1 if c < 0 else 1) for c in corners)
        for row, column in np.ndindex(*output_shape):
            rows = _bin(top, bottom, row, output_shape[0], x.shape[2])
            columns = _bin(left, right, column, output_shape[1], x.shape[3])
            part = x[int(number), :, rows, columns]
            result[index, :, row, column] = part.max((1, 2)) if part.size else 0
    return result


def _bin(first: int, last: int, number: int, bins: int, size: int) -> slice:
    step = max(last - first + 1, 1) / bins
    begin, end = floor(number * step) + first, ceil((number + 1) * step) + first
    return slice(min(max(begin, 0), size), min(max(end, 0), size))


def _deformable(
    x: Array,
    weights: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    offset_group: int,
) -> Array:
    kernel, counts = weights.shape[2:], offset.shape[2:]
    offset = offset.reshape(len(x), offset_group, *kernel, 2, *counts)
    mask = np.ones((len(x), offset_group, *kernel, *counts)) if mask is None else mask
    mask = mask.reshape(len(x), offset_group, *kernel, *counts)
    result = np.zeros((len(x), len(weights), *counts))
    for batch, bent, *rest in np.ndindex(len(x), offset_group, *kernel, *counts):
        tap, window = rest[:2], rest[2:]
        axes = []
        for axis, size in enumerate(x.shape[2:]):
            place = window[axis] * strides[axis] + tap[axis] * dilations[axis] - pads[axis]
            place = place + offset[(batch, bent, *tap, axis, *window)]
            axes.append(_along(place, size, "linear", "zeros", 0, 0))
        values = np.zeros(x.shape[1])
        share = slice(bent * x.shape[1] // offset_group, (bent + 1) * x.shape[1] // offset_group)
        values[share] = _weigh(x[batch, share], axes) * mask[(batch, bent, *tap, *window)]
        for output in range(len(weights)):
            first = output // (len(weights) // group) * weights.shape[1]
            factor = weights[(output, slice(None), *tap)]
            result[(batch, output, *window)] += values[first : first + weights.shape[1]] @ factor
    return result if bias is None else result + bias[:, None, None]


SAMPLING: Mapping[str, Callable[..., Any]] = {
    "GRID_SAMPLE": _grid_sample,
    "AFFINE_GRID": _affine_grid,
    "ROI_ALIGN": _roi_align,
    "MAX_ROI_POOL": _max_roi_pool,
    "DEFORMABLE_CONV_2D": _deformable,
}
"""By operation."""
