"""Image operations: resizing, sampling, and regions of interest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.geometry import linear_indices, nearest_indices, resized_axes
from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.numerics import (
    ALL_FLOATS,
    ALL_NUMBERS,
    HELD,
    LAYOUTS,
    SHARED,
    Function,
    channels_second,
    computes,
    direct,
    moves,
)
from nnadapter.drivers.xla.lowerings.windows import with_bias
from nnadapter.ir import Array, NamedOperation


def _taken(x: Any, places: Array, axis: int) -> Any:
    """Take elements along an axis, by `repeat` if possible, which compiles to less code than a gather."""
    size = x.shape[axis]
    factor = len(places) // size if size else 0
    if factor and np.array_equal(places, np.repeat(np.arange(size), factor)):
        return jnp.repeat(x, factor, axis, total_repeat_length=len(places)) if factor > 1 else x
    return jnp.take(x, places, axis, mode="clip")


@lowers("RESIZE_NEAREST", types=ALL_NUMBERS, quantized=True, layouts=LAYOUTS)
def lower_nearest(operation: NamedOperation) -> Computes:
    """Lower RESIZE_NEAREST."""
    tables = [(axis, nearest_indices(operation, axis)) for axis in resized_axes(operation)]

    def compute(x: Any) -> Any:
        for axis, places in tables:
            x = _taken(x, places, axis)
        return x

    return compute


@lowers("RESIZE_LINEAR", types=ALL_FLOATS, layouts=LAYOUTS)
def lower_linear(operation: NamedOperation) -> Computes:
    """Lower RESIZE_LINEAR."""
    tables = [(axis, *linear_indices(operation, axis)) for axis in resized_axes(operation)]

    def function(x: Any, **attributes: Any) -> Any:
        for axis, lower, upper, share in tables:
            weight = share.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1 - axis))
            x = _taken(x, lower, axis) * (1 - weight) + _taken(x, upper, axis) * weight
        return x

    return computes(operation, function)


@lowers("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", types=HELD, quantized=True, layouts=LAYOUTS)
def lower_blocks(operation: NamedOperation) -> Computes:
    """Lower DEPTH_TO_SPACE and SPACE_TO_DEPTH."""
    return moves(operation, channels_second(operation, SHARED[operation.type]))


Weighted = tuple[Any, Any]
"""Indices and weights along an axis, each of shape [batch, points]."""


def rows_of(x: Any) -> Any:
    """Return an image [N, C, …] as a matrix with one row per pixel."""
    return jnp.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def weighed(rows: Any, pictures: Any, sizes: Sequence[int], neighbors: Sequence[Weighted]) -> Any:
    """Return one pixel of `rows` per point, times the product of its weights: [images, points, C].

    `neighbors` has the index and weight of each pixel per axis, and `pictures` the batch index of each image.
    """
    place, weight = jnp.zeros((), int), jnp.ones((), rows.dtype)
    for size, (index, share) in zip(sizes, neighbors, strict=True):
        place, weight = place * size + index, weight * share
    pixels = jnp.take(rows, pictures[:, None] * prod(sizes) + place, 0, mode="clip")
    return pixels * weight[..., None]


def _reflected(place: Any, low: float, high: float) -> Any:
    span = high - low
    if span <= 0:
        return jnp.full_like(place, low)
    far = jnp.abs(place - low) % (2 * span)
    return low + jnp.where(far > span, 2 * span - far, far)


def _cubic(distance: Any) -> Any:
    d, a = jnp.abs(distance), -0.75
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    return jnp.where(d <= 1, near, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a)


def along(place: Any, size: int, mode: str, padding: str, low: float, high: float) -> list[Weighted]:
    """Return indices and weights of the pixels that `mode` interpolates at the coordinates `place` on one axis."""
    if padding == "reflection":
        place = _reflected(place, low, high)
    first = jnp.floor(place)
    pairs = {
        "nearest": lambda: [(jnp.rint(place), jnp.ones_like(place))],
        "linear": lambda: [(first + step, 1 - jnp.abs(place - first - step)) for step in (0, 1)],
        "cubic": lambda: [(first + step, _cubic(place - first - step)) for step in (-1, 0, 1, 2)],
    }[mode]()
    if padding == "zeros":
        pairs = [(index, jnp.where((index >= 0) & (index < size), weight, 0)) for index, weight in pairs]
    if padding == "reflection":
        pairs = [(jnp.trunc(_reflected(index, low, high)), weight) for index, weight in pairs]
    return [(jnp.clip(index, 0, size - 1).astype(int), weight) for index, weight in pairs]


def _grid_sample(x: Any, grid: Any, mode: str, padding_mode: str, align_corners: bool) -> Any:
    sizes, places = x.shape[2:], grid.reshape(len(x), -1, grid.shape[-1])
    axes = []
    for axis, size in enumerate(sizes):
        value = places[..., len(sizes) - 1 - axis]
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        pixel = (value + 1) / 2 * (size - 1) if align_corners else ((value + 1) * size - 1) / 2
        axes.append(along(jnp.rint(pixel) if mode == "nearest" else pixel, size, mode, padding_mode, low, high))
    rows, pictures = rows_of(x), jnp.arange(len(x))
    total = sum(weighed(rows, pictures, sizes, neighbors) for neighbors in product(*axes))
    return jnp.moveaxis(total, -1, 1).reshape(*x.shape[:2], *grid.shape[1:-1])


def _affine_grid(theta: Any, output_shape: Any, align_corners: bool) -> Any:
    positions = [
        -1 + 2 * np.arange(size) / (size - 1) if align_corners else (2 * np.arange(size) + 1) / size - 1
        for size in output_shape
    ]
    grids = np.meshgrid(*positions, indexing="ij")
    points = np.stack([*grids[::-1], np.ones(output_shape)], -1)
    return jnp.einsum("nij,...j->n...i", theta, jnp.asarray(points.astype(theta.dtype)))


def _deformable(
    x: Any,
    weights: Any,
    offset: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    offset_group: int,
) -> Any:
    kernel, counts, sizes = weights.shape[2:], offset.shape[2:], x.shape[2:]
    batch, channels = x.shape[:2]
    pictures = batch * offset_group
    bent = offset.reshape(pictures, *kernel, 2, *counts)
    shares = jnp.ones((), x.dtype) if mask is None else mask.reshape(pictures, -1, 1)
    axes = []
    for axis, size in enumerate(sizes):
        taps, windows = np.arange(kernel[axis]) * dilations[axis], np.arange(counts[axis]) * strides[axis] - pads[axis]
        shape = [1, 1, 1, 1]
        shape[axis], shape[2 + axis] = kernel[axis], counts[axis]
        straight = (taps[:, None] + windows).reshape(shape).astype(x.dtype)
        place = (bent[:, :, :, axis] + straight).reshape(pictures, -1)
        axes.append(along(place, size, "linear", "zeros", 0, 0))
    rows, which = rows_of(x.reshape(pictures, channels // offset_group, *sizes)), jnp.arange(pictures)
    values = sum(weighed(rows, which, sizes, neighbors) for neighbors in product(*axes)) * shares
    taps_of = (batch, offset_group, prod(kernel), prod(counts), channels // offset_group)
    by_channel = (
        values.reshape(taps_of).transpose(0, 1, 4, 2, 3).reshape(batch, group, channels // group, *taps_of[2:4])
    )
    filters = weights.reshape(group, weights.shape[0] // group, weights.shape[1], -1)
    result = jnp.einsum("ngctp,goct->ngop", by_channel, filters).reshape(batch, -1, *counts)
    return with_bias(result, bias, last=False)


def _counts(length: Any, bins: int, ratio: int) -> Any:
    needed = jnp.maximum(0, jnp.ceil(length / bins)).astype(int)
    return jnp.full(length.shape, ratio) if ratio else needed


def _samples(start: Any, length: Any, counts: Any, bins: int, step: Any) -> Any:
    within = jnp.arange(bins) + ((step + 0.5) / jnp.maximum(counts, 1).astype(start.dtype))[:, None]
    return start[:, None] + within * length[:, None] / bins


def _neighbors(place: Any, size: int) -> Any:
    near = (place >= -1) & (place <= size)
    place = jnp.clip(place, 0, size - 1)
    low = jnp.floor(place)
    share = place - low
    first = low.astype(int)
    return [(first, 1 - share), (jnp.minimum(first + 1, size - 1), share)], near


def _roi_align(
    x: Any,
    regions: Any,
    numbers: Any,
    output_shape: Any,
    spatial_scale: float,
    sampling_ratio: int,
    mode: str,
    half_pixel: bool,
) -> Any:
    sizes, (height, width), rows = x.shape[2:], output_shape, rows_of(x)
    corners = regions * spatial_scale - (0.5 if half_pixel else 0)
    least = -jnp.inf if half_pixel else 1.0
    starts = corners[:, 1], corners[:, 0]
    lengths = [jnp.maximum(corners[:, 3 - axis] - corners[:, 1 - axis], least) for axis in (0, 1)]
    counts = [_counts(length, bins, sampling_ratio) for length, bins in zip(lengths, output_shape, strict=True)]
    most = [count.max(initial=0) for count in counts]
    first = -jnp.inf if mode == "max" else 0

    def sampled(number: Any, total: Any) -> Any:
        steps = number // jnp.maximum(most[1], 1), number % jnp.maximum(most[1], 1)
        is_sample = ((steps[0] < counts[0]) & (steps[1] < counts[1]))[:, None, None]
        axes, near = [], []
        for axis, bins in enumerate(output_shape):
            place = _samples(starts[axis], lengths[axis], counts[axis], bins, steps[axis])
            shape = (-1, bins, 1) if axis == 0 else (-1, 1, bins)
            pairs, is_near = _neighbors(place.reshape(shape), sizes[axis])
            axes.append(pairs)
            near.append(is_near)
        both = near[0] & near[1]
        parts = [_part(rows, numbers, sizes, pair, both, (height, width)) for pair in product(*axes)]
        spread = is_sample.reshape(-1, 1, 1)
        if mode == "max":
            best = jnp.stack(parts).max(0)
            return jnp.maximum(total, jnp.where(spread, best, -jnp.inf))
        return total + jnp.where(spread, sum(parts), 0)

    total = jax.lax.fori_loop(
        0, most[0] * most[1], sampled, jnp.full((len(regions), height * width, x.shape[1]), first, x.dtype)
    )
    samples = (counts[0] * counts[1]).reshape(-1, 1, 1)
    divided = total if mode == "max" else total / jnp.maximum(samples, 1).astype(x.dtype)
    return jnp.moveaxis(jnp.where(samples > 0, divided, 0), -1, 1).reshape(len(regions), x.shape[1], height, width)


def _part(rows: Any, numbers: Any, sizes: Any, pair: Any, near: Any, bins: tuple[int, int]) -> Any:
    shape = (len(numbers), *bins)
    spread = [
        tuple(jnp.broadcast_to(component, shape).reshape(len(numbers), -1) for component in neighbor)
        for neighbor in pair
    ]
    values = weighed(rows, numbers, sizes, spread)
    return jnp.where(jnp.broadcast_to(near, shape).reshape(len(numbers), -1, 1), values, 0)


def _max_roi_pool(x: Any, regions: Any, output_shape: Any, spatial_scale: float) -> Any:
    numbers = regions[:, 0].astype(int)
    corners = regions[:, 1:].astype(jnp.float64) * spatial_scale
    rounded = (jnp.floor(jnp.abs(corners) + 0.5) * jnp.sign(corners)).astype(int)
    rows = _bins(rounded[:, 1], rounded[:, 3], output_shape[0], x.shape[2])
    columns = _bins(rounded[:, 0], rounded[:, 2], output_shape[1], x.shape[3])
    pictures = jnp.take(x, numbers, 0, mode="clip")
    by_row = jnp.where(rows[:, None, :, :, None], pictures[:, :, None], -jnp.inf).max(3)
    result = jnp.where(columns[:, None, None], by_row[:, :, :, None], -jnp.inf).max(4)
    filled = rows.any(-1)[:, :, None] & columns.any(-1)[:, None]
    return jnp.where(filled[:, None], result, 0)


def _bins(first: Any, last: Any, bins: int, size: int) -> Any:
    step = jnp.maximum(last - first + 1, 1)[:, None].astype(jnp.float64) / bins
    number = jnp.arange(bins)
    begin, end = jnp.floor(number * step) + first[:, None], jnp.ceil((number + 1) * step) + first[:, None]
    places = jnp.arange(size)
    return (places >= begin[..., None]) & (places < end[..., None])


_FUNCTIONS: Mapping[str, Function] = {
    "GRID_SAMPLE": _grid_sample,
    "AFFINE_GRID": _affine_grid,
    "DEFORMABLE_CONV_2D": _deformable,
    "ROI_ALIGN": _roi_align,
    "MAX_ROI_POOL": _max_roi_pool,
}
lower_sampling = direct(_FUNCTIONS, computes, types=ALL_FLOATS)
