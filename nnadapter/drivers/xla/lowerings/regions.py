"""What looks at regions of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, Function, computes
from nnadapter.drivers.xla.lowerings.sampling import rows_of, weighed
from nnadapter.ir.named_operation import NamedOperation


def _counts(length: Any, bins: int, ratio: int) -> Any:
    """How many samples each bin of each region has along an axis: [regions]."""
    wanted = jnp.maximum(0, jnp.ceil(length / bins)).astype(int)
    return jnp.full(length.shape, ratio) if ratio else wanted


def _samples(start: Any, length: Any, counts: Any, bins: int, step: Any) -> Any:
    """Where the sample of that number lies in each bin: [regions, bins]."""
    within = jnp.arange(bins) + ((step + 0.5) / jnp.maximum(counts, 1).astype(start.dtype))[:, None]
    return start[:, None] + within * length[:, None] / bins


def _neighbors(place: Any, size: int) -> Any:
    """Two neighbors of each place along an axis, and whether it is near enough to the picture."""
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
    """A loop over the samples of a bin, as many as the region with the most of them has."""
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
        wanted = ((steps[0] < counts[0]) & (steps[1] < counts[1]))[:, None, None]
        axes, near = [], []
        for axis, bins in enumerate(output_shape):
            place = _samples(starts[axis], lengths[axis], counts[axis], bins, steps[axis])
            shape = (-1, bins, 1) if axis == 0 else (-1, 1, bins)
            pairs, is_near = _neighbors(place.reshape(shape), sizes[axis])
            axes.append(pairs)
            near.append(is_near)
        both = near[0] & near[1]
        parts = [_part(rows, numbers, sizes, pair, both, (height, width)) for pair in product(*axes)]
        spread = wanted.reshape(-1, 1, 1)
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
    whole = (jnp.floor(jnp.abs(corners) + 0.5) * jnp.sign(corners)).astype(int)
    rows = _bins(whole[:, 1], whole[:, 3], output_shape[0], x.shape[2])
    columns = _bins(whole[:, 0], whole[:, 2], output_shape[1], x.shape[3])
    pictures = jnp.take(x, numbers, 0, mode="clip")
    by_row = jnp.where(rows[:, None, :, :, None], pictures[:, :, None], -jnp.inf).max(3)
    result = jnp.where(columns[:, None, None], by_row[:, :, :, None], -jnp.inf).max(4)
    filled = rows.any(-1)[:, :, None] & columns.any(-1)[:, None]
    return jnp.where(filled[:, None], result, 0)


def _bins(first: Any, last: Any, bins: int, size: int) -> Any:
    """Which rows belong to each bin of each region: [regions, bins, size]."""
    step = jnp.maximum(last - first + 1, 1)[:, None].astype(jnp.float64) / bins
    number = jnp.arange(bins)
    begin, end = jnp.floor(number * step) + first[:, None], jnp.ceil((number + 1) * step) + first[:, None]
    places = jnp.arange(size)
    return (places >= begin[..., None]) & (places < end[..., None])


_REGION_FUNCTIONS: Mapping[str, Function] = {"ROI_ALIGN": _roi_align, "MAX_ROI_POOL": _max_roi_pool}


@lowers(*_REGION_FUNCTIONS, types=ALL_FLOATS)
def lower_regions(operation: NamedOperation) -> Computes:
    """Regions brought to one size."""
    return computes(operation, _REGION_FUNCTIONS[operation.type])
