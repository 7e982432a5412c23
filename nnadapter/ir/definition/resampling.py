"""Reference implementations: sampling of images between pixels, [N, C, H, W] in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _source(length: int, out: int, scale: float, mode: str) -> Array:
    """Return the position of each output index on the input axis, in float32 as in ONNX Runtime."""
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


def _reflect(place: float, low: float, high: float) -> float:
    while not low <= place <= high and high > low:
        place = 2 * low - place if place < low else 2 * high - place
    return place if high > low else low


def _cubic(distance: float) -> float:
    d, a = abs(distance), -0.75
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


def along(place: float, size: int, mode: str, padding: str, low: float, high: float) -> list[tuple[int, float]]:
    """Return the indices and weights of neighbors along one axis."""
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


def weigh(image: Array, axes: Sequence[list[tuple[int, float]]]) -> Array:
    """Return the weighted sum of an image's elements over the neighbors along each axis."""
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
            axes.append(along(round(pixel) if mode == "nearest" else pixel, size, mode, padding_mode, low, high))
        result[(batch, slice(None), *place)] = weigh(x[batch], axes)
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
    """Return the four weighted neighbors of a position as [4, C]."""
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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "RESIZE_NEAREST": _resize_nearest,
    "RESIZE_LINEAR": _resize_linear,
    "GRID_SAMPLE": _grid_sample,
    "AFFINE_GRID": _affine_grid,
    "ROI_ALIGN": _roi_align,
    "MAX_ROI_POOL": _max_roi_pool,
}

DOCS = """\
# *
input: Any rank; images [N, C, H, W], or [N, H, W, C] for layout NHWC.
shape: The dimensions of the result, one per axis, including batch and channels.
scales: Elements of the result per element of the input, for every axis; about out / size, but not always exactly.
  Coordinates are computed from scales, not from sizes.
coordinate_transformation_mode: Mapping of an output index to a position in the input: see the formula.
-> output: The data type and layout of `input`; dimensions `shape`.
align_corners: True: -1 and 1 are the centers of the corner pixels. False: their outer edges.
output_shape: (height, width) of the result for each region, in bins.
spatial_scale: Factor for corners: pixels of `input` per unit of a region.
# RESIZE_NEAREST: Resize by nearest neighbor.
| output[…, i, …] = input[…, clip(rounded(place(i)), 0, size - 1), …], axis by axis
| place of output index i on an axis that goes from `size` to `out` elements, s = scales[axis]:
|   half_pixel            (i + 0.5) / s - 0.5
|   pytorch_half_pixel    the same; 0 if out is 1
|   align_corners         i * (size - 1) / (out - 1); 0 if out is 1
|   asymmetric            i / s
|   half_pixel_symmetric  size / 2 * (1 - out / (s * size)) + (i + 0.5) / s - 0.5
| rounded: round_prefer_floor ceil(p - 0.5); round_prefer_ceil floor(p + 0.5); floor(p); ceil(p)
nearest_mode: Rounding of a position between two elements. `round_prefer_floor`: to nearest, halves down.
  `round_prefer_ceil`: to nearest, halves up. `floor` and `ceil`: always down, or up.
- Positions are computed in float32, in the order of the formula: rounding decides which neighbor is nearest.
- An axis with equal sizes and scale 1 does not change; one with equal sizes and another scale may.
- `shape` and `scales` have an entry for every axis, including batch and channels.
- A per-tensor quantization passes on to the result.
example: counting(1, 4), shape=(1, 6), scales=(1.0, 1.5), coordinate_transformation_mode='asymmetric',
  nearest_mode='floor'
# RESIZE_LINEAR: Resize by linear interpolation along every axis that changes.
| output[…, i, …] = input[…, low, …] * (1 - w) + input[…, high, …] * w, axis by axis
| p = clip(place(i), 0, size - 1), low = floor(p), high = min(low + 1, size - 1), w = p - low
| place of output index i on an axis that goes from `size` to `out` elements, s = scales[axis]:
|   half_pixel            (i + 0.5) / s - 0.5
|   pytorch_half_pixel    the same; 0 if out is 1
|   align_corners         i * (size - 1) / (out - 1); 0 if out is 1
|   asymmetric            i / s
|   half_pixel_symmetric  size / 2 * (1 - out / (s * size)) + (i + 0.5) / s - 0.5
|
- Positions are computed in float32, in the order of the formula: rounding decides which neighbor is nearest.
- An axis with equal sizes and scale 1 does not change; one with equal sizes and another scale may.
- `shape` and `scales` have an entry for every axis, including batch and channels.
- Positions are clipped before weights are computed: there is no extrapolation at the edges.
- Two axes give bilinear, three trilinear interpolation. There is no antialiasing.
FLOPs: 3 per output element and axis that changes
example: [[10.0, 20.0]], shape=(1, 4), scales=(1.0, 2.0)
# GRID_SAMPLE: Images sampled at the positions in a grid.
| output[n, c, y, x] = interpolated(input[n, c], place(grid[n, y, x]))
| place of a coordinate v on an axis of `size`:
|   align_corners true:  (v + 1) / 2 * (size - 1)
|   align_corners false: ((v + 1) * size - 1) / 2
| nearest: the element at the rounded place, halves to even
| linear: the two neighbors per axis, with weights 1 - distance
| cubic: four neighbors per axis, a = -0.75: (a + 2)|d|^3 - (a + 3)|d|^2 + 1 for |d| <= 1,
|        a|d|^3 - 5a|d|^2 + 8a|d| - 4a for 1 < |d| < 2
input: Images [N, C, H, W] or volumes [N, C, D, H, W]; NCHW only.
grid: [N, OH, OW, 2] or [N, OD, OH, OW, 3]: positions, -1 to 1 from edge to edge. The last axis is (x, y) or (x, y, z):
  horizontal first.
mode: Interpolation between pixels. `cubic` is for images only.
padding_mode: Values outside. `zeros`: neighbors outside are 0. `border`: the nearest element. `reflection`: mirrored at
  the edge.
-> output: [N, C, OH, OW] or [N, C, OD, OH, OW]. The data type of `input`.
- The grid's last axis is (x, y), while the axes of an image are (y, x).
- Reflection mirrors at the centers of the corner pixels if corners align, otherwise at their outer edges; first the
  position, then every neighbor.
- With `zeros`, a position half a pixel outside still gets its share of the edge pixel.
- `nearest` rounds the position before reflecting it.
FLOPs: 2 * output elements * neighbors per axis ^ spatial axes (1, 2 and 4 per axis for nearest, linear and cubic)
example: counting(1, 1, 2, 2), [[[[-0.5, -0.5], [0.0, 0.0], [1.0, 0.5]]]], padding_mode='zeros'
# AFFINE_GRID: The grid for GRID_SAMPLE of an affine map.
| output[n, y, x] = input[n] @ (px, py, 1)
| p of index i on an axis of `size`: align_corners: 2 * i / (size - 1) - 1; else: (2 * i + 1) / size - 1
input: Matrices [N, 2, 3] for images, [N, 3, 4] for volumes.
output_shape: Sizes of the grid, (height, width) or (depth, height, width); greater than 1 if corners align.
-> output: [N, height, width, 2] or [N, depth, height, width, 3]. The data type of `input`.
- Coordinates are (x, y) or (x, y, z), horizontal first, in rows and columns of the matrix and in the result.
- `output_shape` has only spatial sizes; ONNX's `size` starts with batch and channels.
FLOPs: 2 * output elements * columns of a matrix
example: [[[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]]], output_shape=(1, 2)
# ROI_ALIGN: Regions of images, divided into bins and sampled between pixels.
| region = regions[r] * spatial_scale, less 0.5 if half_pixel: (left, top, right, bottom)
| height = bottom - top, width = right - left; at least 1 unless half_pixel
| vertical samples of bin b: top + (b + (s + 0.5) / count) * height / bins, s = 0 to count - 1; same horizontally
| count = sampling_ratio, or ceil(height / bins) if that is 0; same horizontally
| output[r, c, y, x] = mean over the samples of bin (y, x) of linear interpolation in input[batch_indices[r], c]
input: Images [N, C, H, W]; NCHW only.
regions: [R, 4]: (left, top, right, bottom).
batch_indices: [R]: index of each region's image.
sampling_ratio: Samples per bin along each axis; 0: the number of pixels per bin, rounded up.
mode: `avg`: the mean of all samples. `max`: the largest weighted neighbor of all samples.
half_pixel: True: pixel centers are at 0.5, so corners move by -0.5. False: no shift, and regions have at least one
  pixel.
-> output: [R, C, height, width]. The data type of `input`.
- `max` returns the largest single neighbor times its weight, without adding neighbors, as in ONNX Runtime.
- A sample from -1 to the size in both axes is moved into the image; one further out is 0, and still counts in the mean.
- With half_pixel, a region may be empty or inverted: bins without samples are 0.
- spatial_scale applies before the shift.
example: counting(1, 1, 3, 3), [[0.0, 0.0, 2.0, 2.0]], [0], output_shape=(1, 2), sampling_ratio=1
# MAX_ROI_POOL: The largest element of each bin of regions of images.
| corner = floor(|c| * spatial_scale + 0.5), with the sign of c, for each number c of a region
| step = max(bottom - top + 1, 1) / bins; columns like rows
| rows of bin b: from floor(b * step) + top to ceil((b + 1) * step) + top - 1, within 0 to H
| output[r, c, y, x] = max of input[regions[r, 0], c, rows, columns], 0 if empty
input: Images [N, C, H, W]; NCHW only.
regions: [R, 5]: (batch, left, top, right, bottom).
-> output: [R, C, height, width]. The data type of `input`.
- The right and bottom corners belong to the region.
- Bins may overlap by a row or a column.
- An empty bin gives 0, not the smallest number.
- The index of the image is a float, the first of the five numbers.
example: counting(1, 1, 3, 3), [[0.0, 0.0, 0.0, 2.0, 1.0]], output_shape=(2, 2)
"""
