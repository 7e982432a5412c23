"""What reads pictures between their pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, Function, computes
from nnadapter.drivers.xla.lowerings.convolution import with_bias
from nnadapter.ir.named_operation import NamedOperation

Weighted = tuple[Any, Any]
"""Indices along an axis, and how much each of them counts: [pictures, places] both."""


def rows_of(x: Any) -> Any:
    """[N, C, …] as rows of channels: one for each pixel of each picture."""
    return jnp.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def weighed(rows: Any, pictures: Any, sizes: Sequence[int], neighbors: Sequence[Weighted]) -> Any:
    """The pixels at one neighbor of each place, weighed: [pictures, places, C].

    Args:
        rows: what `rows_of` gives.
        pictures: which one each row of places looks at, [pictures].
        sizes: of a picture.
        neighbors: one for each axis.
    """
    place, weight = jnp.zeros((), int), jnp.ones((), rows.dtype)
    for size, (index, share) in zip(sizes, neighbors, strict=True):
        place, weight = place * size + index, weight * share
    taken = jnp.take(rows, pictures[:, None] * prod(sizes) + place, 0, mode="clip")
    return taken * weight[..., None]


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
    """The neighbors of places along one axis."""
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


_SAMPLING_FUNCTIONS: Mapping[str, Function] = {
    "GRID_SAMPLE": _grid_sample,
    "AFFINE_GRID": _affine_grid,
    "DEFORMABLE_CONV_2D": _deformable,
}


@lowers(*_SAMPLING_FUNCTIONS, types=ALL_FLOATS)
def lower_sampling(operation: NamedOperation) -> Computes:
    """At places that are computed."""
    return computes(operation, _SAMPLING_FUNCTIONS[operation.type])
