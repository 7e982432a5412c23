"""Sliding windows over any number of axes, and pooling over [N, H, W, C] and [N, C, …]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, check_indices, named_kernels
from nnadapter.ir.operand import Array


class Window(NamedTuple):
    """Sliding window; one value per spatial axis."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Starts of all axes, then ends."""

    @property
    def rank(self) -> int:
        return len(self.kernel_shape)

    @property
    def begins(self) -> tuple[int, ...]:
        return self.pads[: self.rank]

    @property
    def is_pointwise(self) -> bool:
        return {*self.kernel_shape, *self.strides} <= {1} and not any(self.pads)

    def taps(self) -> Iterator[tuple[int, ...]]:
        return product(*map(range, self.kernel_shape))

    def reach(self, result: Sequence[int]) -> tuple[int, ...]:
        """Return the padded sizes that windows at `result` positions read."""
        axes = zip(result, self.kernel_shape, self.strides, self.dilations, strict=True)
        return tuple((count - 1) * stride + (kernel - 1) * dilation + 1 for count, kernel, stride, dilation in axes)

    def along(self, axis: int, tap: int, count: int, first: int = 0) -> slice:
        """Return the slice that one tap reads for `count` positions from `first` on."""
        stride = self.strides[axis]
        start = tap * self.dilations[axis] + first * stride
        return slice(start, start + (count - 1) * stride + 1, stride)

    def pad(self, x: Array, first: int, result: Sequence[int], fill: float = 0) -> Array:
        """Return the array with the padding that windows read; spatial axes begin at `first`."""
        image, reach = x.shape[first : first + self.rank], self.reach(result)
        if not any(self.begins) and all(far <= size for far, size in zip(reach, image, strict=True)):
            return x
        padded = np.full((*x.shape[:first], *reach, *x.shape[first + self.rank :]), fill, x.dtype)
        sizes = [max(0, min(size, far - begin)) for size, far, begin in zip(image, reach, self.begins, strict=True)]
        inside = (slice(begin, begin + size) for begin, size in zip(self.begins, sizes, strict=True))
        leading = (slice(None),) * first
        padded[(*leading, *inside)] = x[(*leading, *map(slice, sizes))]
        return padded

    def views(self, padded: Array, result: Sequence[int]) -> Array:
        """Return all windows of [N, spatial…, C] as a view [N, positions…, taps…, C]."""
        batch, *spatial, channel = padded.strides
        positions = [step * stride for step, stride in zip(spatial, self.strides, strict=True)]
        taps = [step * dilation for step, dilation in zip(spatial, self.dilations, strict=True)]
        shape = (len(padded), *result, *self.kernel_shape, padded.shape[-1])
        return as_strided(padded, shape, (batch, *positions, *taps, channel), writeable=False)

    def shares(self, image: Sequence[int], result: Sequence[int], *, include_pad: bool) -> Array:
        """Return 1 / (number of elements) per window. Padding counts only with `include_pad`."""
        counts = np.ones((1,) * len(result), np.int64)
        for axis, (size, count) in enumerate(zip(image, result, strict=True)):
            begin, end = self.pads[axis], self.pads[axis + len(result)]
            first = np.arange(count)[:, None] * self.strides[axis] - begin
            places = first + np.arange(self.kernel_shape[axis]) * self.dilations[axis]
            low, high = (-begin, size + end) if include_pad else (0, size)
            along = np.count_nonzero((places >= low) & (places < high), axis=1)
            counts = counts * along.reshape((-1,) + (1,) * (len(result) - axis - 1))
        return (1 / np.maximum(counts, 1)).astype(np.float32)

    def add_windows(self, full: Array, values: Array, first_row: int = 0) -> None:
        """Add windows [N, positions…, taps…, C] to a padded image [N, spatial…, C]."""
        counts = values.shape[1 : 1 + self.rank]
        starts = (first_row, *(0,) * (self.rank - 1))
        for tap in self.taps():
            steps = zip(tap, counts, starts, strict=True)
            places: Any = [self.along(axis, step, count, start) for axis, (step, count, start) in enumerate(steps)]
            elements: Any = (slice(None),) * (1 + self.rank) + tap
            full[(slice(None), *places)] += values[elements]


_IMAGE, _AXES = 1, 2
"""First spatial axis of [N, H, W, C] and of [N, C, …]."""


def _combined(
    x: Array, window: Window, first: int, result: Sequence[int], combine: Callable[..., object], fill: float = 0
) -> Array:
    x = window.pad(x, first, result, fill)
    for axis in range(window.rank):
        leading = (slice(None),) * (first + axis)
        parts = [x[(*leading, window.along(axis, tap, result[axis]))] for tap in range(window.kernel_shape[axis])]
        x = parts[0].copy()
        for part in parts[1:]:
            combine(x, part, out=x)
    return x


def _lowest(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def max_pool(out: Array, x: Array, *, first: int, **geometry: Any) -> None:
    """Write the maximum of each window; NaN wins. Spatial axes begin at `first`."""
    window, result = Window(**geometry), out.shape[first : first + x.ndim - 2]
    np.copyto(out, _combined(x, window, first, result, np.maximum, _lowest(x.dtype)))


def average_pool(out: Array, x: Array, *, first: int, count_include_pad: bool, **geometry: Any) -> None:
    """Write the mean of each window. Padding counts only with `count_include_pad`."""
    window, spatial = Window(**geometry), slice(first, first + x.ndim - 2)
    share = window.shares(x.shape[spatial], out.shape[spatial], include_pad=bool(count_include_pad))
    total = _combined(x, window, first, out.shape[spatial], np.add)
    np.multiply(total, share[..., None] if first == _IMAGE else share, out)


def p_norm_pool(out: Array, x: Array, *, p: int, **geometry: Any) -> None:
    """Write the p-norm of each window."""
    window, result = Window(**geometry), out.shape[_AXES:]
    powers = np.abs(x) if p == 1 else x * x if p == 2 else np.abs(x) ** np.float32(p)
    total = _combined(powers, window, _AXES, result, np.add)
    np.copyto(out, total if p == 1 else np.sqrt(total) if p == 2 else total ** np.float32(1 / p))


def max_pool_with_indices(out: Array, indices: Array, x: Array, *, storage_order: str, **geometry: Any) -> None:
    """Write maximums and their flat indices. Of equal elements, the first is selected; padding is never selected."""
    window, result, image = Window(**geometry), out.shape[2:], x.shape[2:]
    padded = window.pad(x, _AXES, result, _lowest(x.dtype))
    order = np.arange(prod(image)).reshape(image, order="C" if storage_order == "row_major" else "F")
    numbers = window.pad(order[None, None], _AXES, result, -1)[0, 0]
    out[...], indices[...] = _lowest(x.dtype), 0
    covered = np.zeros(result, np.bool_)
    for tap in window.taps():
        where = tuple(window.along(axis, step, result[axis]) for axis, step in enumerate(tap))
        values, places = padded[(slice(None), slice(None), *where)], numbers[where]
        inside = places >= 0
        # the first element inside the image replaces padding, even NaN
        larger = inside & (~covered | (values > out))
        np.copyto(out, values, where=larger)
        np.copyto(indices, np.broadcast_to(places, out.shape), where=larger)
        covered |= inside
    planes = np.arange(prod(x.shape[:2])) * prod(image)
    np.add(indices, planes.reshape(*x.shape[:2], *(1,) * window.rank), indices)


def max_unpool(out: Array, x: Array, indices: Array) -> None:
    """Write elements at flat indices, zeros elsewhere."""
    check_indices(indices, out.size)
    out[...] = 0
    out.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(max_pool_with_indices, max_unpool, p_norm_pool),
    "average_pool": NumpyKernel(partial(average_pool, first=_IMAGE)),
    "average_pool_axes": NumpyKernel(partial(average_pool, first=_AXES)),
    "max_pool": NumpyKernel(partial(max_pool, first=_IMAGE)),
    "max_pool_axes": NumpyKernel(partial(max_pool, first=_AXES)),
}
