"""Kernels that sample between pixels: resize, grid sampling, deformable convolution, region pooling.

A place is a coordinate in pixels along one axis. A neighbor has a weight per axis; its total weight is their product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import check_indices, named_kernels
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.errors import InputValueError
from nnadapter.ir.index_ranges import farthest_corner
from nnadapter.ir.operand import Array

CoordinateRule = Callable[[Array, np.float32, int, int], Array]
"""Result indices, scale, input size, result size -> input coordinates."""


_HALF = np.float32(0.5)


def _half_pixel(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return (place + _HALF) / scale - _HALF


def _half_pixel_symmetric(place: Array, scale: np.float32, size: int, result: int) -> Array:
    # The result size was rounded down; both ends share the difference.
    adjustment = np.float32(result) / (scale * np.float32(size))
    offset = np.float32(size) / np.float32(2) * (np.float32(1) - adjustment)
    # ONNX's order; another one rounds some whole numbers down.
    return offset + (place + _HALF) / scale - _HALF


def _unless_single(rule: CoordinateRule) -> CoordinateRule:
    return lambda *arguments: rule(*arguments) if arguments[-1] > 1 else np.zeros_like(arguments[0])


COORDINATES: Mapping[str, CoordinateRule] = {
    "align_corners": _unless_single(
        lambda place, scale, size, result: place * np.float32(size - 1) / np.float32(result - 1)
    ),
    "asymmetric": lambda place, scale, size, result: place / scale,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _unless_single(_half_pixel),
}

_ALMOST = 1e-6
ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    # Compared, not added: 3.4999998 + 0.5 is 4 in float32. As in ONNX Runtime, almost half rounds up too.
    "round_prefer_ceil": lambda place: np.floor(place) + (place - np.floor(place) >= 0.5 - _ALMOST),
    "round_prefer_floor": lambda place: np.floor(place) + (place - np.floor(place) > 0.5),
}


def _places(size: int, result: int, scale: float, mode: str) -> Array:
    """Return the input coordinate of every result index along an axis.

    It is float32, as in ONNX Runtime, because the last bit may decide the nearest pixel.
    """
    rule = COORDINATES[mode]
    return rule(np.arange(result, dtype=np.float32), np.float32(scale), size, result).astype(np.float32)


def _resized_axes(x: Sequence[int], out: Sequence[int], scales: Sequence[float]) -> list[int]:
    resized = [axis for axis, size in enumerate(x) if size != out[axis] or scales[axis] != 1]
    return sorted(resized, key=lambda axis: out[axis] / x[axis])


def resize_nearest(
    out: Array, x: Array, *, scales: Sequence[float], coordinate_transformation_mode: str, nearest_mode: str
) -> None:
    """Copy the nearest element to each result."""
    for axis in _resized_axes(x.shape, out.shape, scales):
        places = _places(x.shape[axis], out.shape[axis], scales[axis], coordinate_transformation_mode)
        nearest = np.clip(ROUNDINGS[nearest_mode](places), 0, x.shape[axis] - 1).astype(np.intp)
        x = np.take(x, nearest, axis=axis)
    np.copyto(out, x)


def resize_linear(out: Array, x: Array, *, scales: Sequence[float], coordinate_transformation_mode: str) -> None:
    """Interpolate between two neighbors per axis, clamped to the edge."""
    for axis in _resized_axes(x.shape, out.shape, scales):
        size = x.shape[axis]
        places = np.clip(_places(size, out.shape[axis], scales[axis], coordinate_transformation_mode), 0, size - 1)
        below = np.minimum(np.floor(places).astype(np.intp), max(size - 2, 0))
        weight = (places - below).astype(out.dtype).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        lower, upper = np.take(x, below, axis=axis), np.take(x, np.minimum(below + 1, size - 1), axis=axis)
        x = lower + (upper - lower) * weight
    np.copyto(out, x)


Neighbors = list[tuple[Array, Array]]
"""Index and weight of each neighbor along one axis."""
_CUBIC_ALPHA = np.float32(-0.75)


def _linear(place: Array) -> Neighbors:
    below = np.floor(place)
    fraction = place - below
    return [(below, 1 - fraction), (below + 1, fraction)]


def _cubic(place: Array) -> Neighbors:
    """Return neighbors of cubic convolution, parameter -0.75. Source: Keys, 1981, doi 10.1109/TASSP.1981.1163711."""
    a, below = _CUBIC_ALPHA, np.floor(place)
    fraction = place - below

    def near(distance: Array) -> Array:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1

    def far(distance: Array) -> Array:
        return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a

    weights = far(1 + fraction), near(fraction), near(1 - fraction), far(2 - fraction)
    return [(below + step, weight) for step, weight in zip((-1, 0, 1, 2), weights, strict=True)]


_NEIGHBORS: Mapping[str, Callable[[Array], Neighbors]] = {
    "cubic": _cubic,
    "linear": _linear,
    "nearest": lambda place: [(place, np.ones_like(place))],
}
"""Mode -> function from coordinates to neighbors, maybe outside the image. "nearest" expects integral coordinates."""


def _zero_outside(neighbors: Neighbors, size: int) -> Neighbors:
    return [
        (np.clip(index, 0, size - 1), np.where((index >= 0) & (index < size), weight, np.float32(0)))
        for index, weight in neighbors
    ]


def _reflected(place: Array, low: float, high: float) -> Array:
    span = np.float32(high - low)
    if span == 0:
        return np.full_like(place, low)
    outside = np.where(place < low, low - place, place - high).astype(np.float32)
    turns = np.floor(outside / span)
    remainder = outside - turns * span
    # an even number of reflections ends at the bound beyond which the place lies
    from_low = (turns % 2 == 0) == (place < low)
    inside = np.where(from_low, low + remainder, high - remainder)
    return np.where(outside > 0, inside, place).astype(np.float32)


def _weighted_sum(source: Array, axes: Sequence[tuple[int, Neighbors]]) -> Array:
    total: Any = 0
    for neighbors in product(*(axis_neighbors for _, axis_neighbors in axes)):
        pixels: Any = 0
        for (size, _), (index, _) in zip(axes, neighbors, strict=True):
            pixels = pixels * size + index.astype(np.int64)
        weights = reduce(np.multiply, (weight for _, weight in neighbors))
        total = total + np.take(source, pixels, axis=1, mode="clip") * weights
    return total  # type: ignore[no-any-return]


def _grid_sample(out: Array, x: Array, grid: Array, *, mode: str, padding_mode: str, align_corners: bool) -> None:
    axes = x.ndim - 2
    for image, places, target in zip(x, grid.reshape(len(x), -1, axes), out, strict=True):
        neighbors = [
            (size, _grid_neighbors(places[:, axes - 1 - axis], size, mode, padding_mode, align_corners))
            for axis, size in enumerate(x.shape[2:])
        ]
        np.copyto(target, _weighted_sum(image.reshape(len(image), -1), neighbors).reshape(target.shape))


def _grid_neighbors(grid: Array, size: int, mode: str, padding: str, corners: bool) -> Neighbors:
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    place = (grid + 1) / 2 * (size - 1) if corners else ((grid + 1) * size - 1) / 2
    if mode == "nearest":
        place = np.rint(place)
    # as in ONNX Runtime and PyTorch, cubic neighbors are clamped one by one
    if padding == "border" and mode != "cubic":
        place = np.clip(place, 0, size - 1)
    elif padding == "reflection":
        place = _reflected(place, low, high)
    neighbors = _NEIGHBORS[mode](place)
    if padding == "zeros":
        return _zero_outside(neighbors, size)
    if padding == "reflection":
        neighbors = [(np.trunc(_reflected(index, low, high)), weight) for index, weight in neighbors]
    return [(np.clip(index, 0, size - 1), weight) for index, weight in neighbors]


def _affine_grid(out: Array, theta: Array, *, align_corners: bool) -> None:
    sizes = out.shape[1:-1]
    lines = [_even_places(size, align_corners) for size in sizes]
    places = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1).reshape(-1, len(sizes))
    homogeneous = np.concatenate([places, np.ones_like(places[:, :1])], axis=1)
    np.matmul(homogeneous, theta.transpose(0, 2, 1), out.reshape(len(out), -1, len(sizes)))


def _even_places(size: int, corners: bool) -> Array:
    if corners:
        return np.linspace(-1, 1, size, dtype=np.float32)
    return ((np.arange(size, dtype=np.float64) * 2 + 1) / size - 1).astype(np.float32)


def _deformable_convolution(out: Array, *, offset: Array, group: int, offset_group: int, **parameters: Any) -> None:
    images, weight, bias, mask = (parameters.pop(role, None) for role in ("input", "filter", "bias", "mask"))
    window, (height, width) = Window(kernel_shape=weight.shape[2:], **parameters), out.shape[2:]
    offsets = offset.reshape(len(offset), offset_group, *window.kernel_shape, 2, height, width)
    masks = None if mask is None else mask.reshape(len(mask), offset_group, *window.kernel_shape, -1)
    factors = weight.reshape(group, -1, *weight.shape[1:])
    out[...] = 0 if bias is None else bias.reshape(-1, 1, 1)
    for number, image in enumerate(images):
        parts = image.reshape(offset_group, -1, image[0].size)
        for row, column in window.taps():
            even = _tap_places(window, 0, row, height)[:, None], _tap_places(window, 1, column, width)
            pixels = []
            for index, part in enumerate(parts):
                places = [even[axis] + offsets[number, index, row, column, axis] for axis in range(2)]
                sizes = zip(image.shape[1:], places, strict=True)
                axes = [(size, _zero_outside(_linear(place.reshape(-1)), size)) for size, place in sizes]
                factor = 1 if masks is None else masks[number, index, row, column]
                pixels.append(_weighted_sum(part, axes) * factor)
            columns = np.concatenate(pixels).reshape(group, -1, height * width)
            out[number] += np.matmul(factors[:, :, :, row, column], columns).reshape(out[number].shape)


def _tap_places(window: Window, axis: int, tap: int, count: int) -> Array:
    first = tap * window.dilations[axis] - window.pads[axis]
    return (np.arange(count) * window.strides[axis] + first).astype(np.float32)


def _check_finite(regions: Array) -> None:
    if not np.isfinite(regions).all():
        first = int(np.flatnonzero(~np.isfinite(regions).all(axis=1))[0])
        raise InputValueError(f"region {first} is {regions[first].tolist()}; expected finite numbers")


def _roi_align(out: Array, x: Array, regions: Array, numbers: Array, *, half_pixel: bool, **parameters: Any) -> None:
    scale, ratio = parameters["spatial_scale"], parameters["sampling_ratio"]
    _check_finite(regions)
    most, far = farthest_corner(x.shape[2:], scale), float(np.abs(regions).max(initial=0))
    if not ratio and far > most:  # one sample per pixel would be too many
        text = f"a region reaches to {far:g}; expected at most {most} for images of {x.shape[2:]}"
        raise InputValueError(text)
    check_indices(numbers, len(x))
    for region, number, target in zip(regions, numbers.tolist(), out, strict=True):
        corners = region * np.float32(scale) - np.float32(0.5 if half_pixel else 0)
        lengths = corners[2:] - corners[:2]
        if not half_pixel:
            lengths = np.maximum(lengths, np.float32(1))
        sides = [
            _samples(corners[place], lengths[place], target.shape[axis], x.shape[axis + 1], ratio)
            for place, axis in ((1, 1), (0, 2))
        ]
        _pool_samples(target, x[number], sides, is_mean=parameters["mode"] == "avg")


_Samples = tuple[Neighbors, int]


def _samples(start: np.float32, length: np.float32, bins: int, size: int, sampling_ratio: int) -> _Samples:
    """Return sample coordinates along a region's side; samples far outside the image have weight 0."""
    step = length / np.float32(bins)
    count = sampling_ratio or max(0, int(np.ceil(step)))
    inner = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * step / np.float32(max(count, 1))
    place = (start + np.arange(bins, dtype=np.float32)[:, None] * step + inner).reshape(-1)
    inside = (place >= -1) & (place <= size)
    neighbors = _linear(np.clip(place, 0, size - 1))
    return [(np.minimum(index, size - 1), np.where(inside, weight, 0)) for index, weight in neighbors], count


def _pool_samples(out: Array, image: Array, sides: Sequence[_Samples], *, is_mean: bool) -> None:
    """Write the mean of each bin's samples, or the maximum of all neighbors times their weights."""
    (rows, down), (columns, across) = sides
    if not down * across:
        out[...] = 0
        return
    terms = (
        image[:, row.astype(np.int64)[:, None], column.astype(np.int64)] * (row_weight[:, None] * column_weight)
        for (row, row_weight), (column, column_weight) in product(rows, columns)
    )
    values = reduce(np.add if is_mean else np.maximum, terms)
    bins = values.reshape(len(image), out.shape[1], down, out.shape[2], across)
    np.copyto(out, bins.mean(axis=(2, 4)) if is_mean else bins.max(axis=(2, 4)))


def _max_roi_pool(out: Array, x: Array, regions: Array, *, spatial_scale: float) -> None:
    _check_finite(regions)
    numbers = regions[:, 0].astype(np.int64)
    check_indices(numbers, len(x))
    corners = _rounded(regions[:, 1:] * np.float32(spatial_scale))
    for corner, number, target in zip(corners, numbers.tolist(), out, strict=True):
        image = x[number]
        rows = _bins(corner[1], corner[3], target.shape[1], image.shape[1])
        columns = _bins(corner[0], corner[2], target.shape[2], image.shape[2])
        largest = image[:, rows[0]].max(axis=2)[:, :, columns[0]].max(axis=3)
        np.copyto(target, np.where(rows[1][:, None] & columns[1], largest, 0))


def _rounded(places: Array) -> Array:
    return np.copysign(np.floor(np.abs(places) + np.float32(0.5)), places)


def _bins(first: np.float32, last: np.float32, bins: int, size: int) -> tuple[Array, Array]:
    """Return the pixels of every bin, padded with its last pixel, and a mask of nonempty bins."""
    step = np.maximum(last - first + 1, np.float32(1)) / np.float32(bins)
    numbers = np.arange(bins, dtype=np.float32)
    begins = np.clip(np.floor(numbers * step) + first, 0, size).astype(np.int64)
    ends = np.clip(np.ceil((numbers + 1) * step) + first, 0, size).astype(np.int64)
    most = max(1, int((ends - begins).max()))
    pixels = np.minimum(begins[:, None] + np.arange(most), np.maximum(ends - 1, 0)[:, None])
    return np.clip(pixels, 0, size - 1), ends > begins


KERNELS = named_kernels(
    resize_linear, resize_nearest, _affine_grid, _deformable_convolution, _grid_sample, _max_roi_pool, _roi_align
)
