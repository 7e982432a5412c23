"""Windows of convolutions and pools: padding, strides and dilations over any number of axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.ir.operand import Array


class Window(NamedTuple):
    """A window that slides over spatial axes; tuples have one value per axis, in the image's order."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Begin of every axis, then end of every axis."""

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel_shape)

    @property
    def begins(self) -> tuple[int, ...]:
        """The padding before every axis."""
        return self.pads[: self.rank]

    @property
    def is_pointwise(self) -> bool:
        """Whether every output depends on the element at its own position alone."""
        return {*self.kernel_shape, *self.strides} <= {1} and not any(self.pads)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Yield every position in the window, the last axis fastest."""
        return product(*map(range, self.kernel_shape))

    def reach(self, result: Sequence[int]) -> tuple[int, ...]:
        """Return the padded sizes that windows of `result` positions read."""
        axes = zip(result, self.kernel_shape, self.strides, self.dilations, strict=True)
        return tuple((count - 1) * stride + (kernel - 1) * dilation + 1 for count, kernel, stride, dilation in axes)

    def along(self, axis: int, tap: int, count: int, first: int = 0) -> slice:
        """Return the slice of a padded axis that one tap reads for `count` positions from `first` on."""
        stride = self.strides[axis]
        start = tap * self.dilations[axis] + first * stride
        return slice(start, start + (count - 1) * stride + 1, stride)

    def pad(self, x: Array, first: int, result: Sequence[int], fill: float = 0) -> Array:
        """Return an array with the padding that windows read; itself if they stay inside.

        Args:
            x: any array.
            first: its first spatial axis.
            result: numbers of positions along the spatial axes.
            fill: value of the padding.
        """
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
        """Return one over the number of elements that count in each window, in float32.

        Args:
            image: sizes of the spatial axes.
            result: numbers of positions along them.
            include_pad: padding counts too.
        """
        counts = np.ones((1,) * len(result), np.int64)
        for axis, (size, count) in enumerate(zip(image, result, strict=True)):
            before, after = self.pads[axis], self.pads[axis + len(result)]
            first = np.arange(count)[:, None] * self.strides[axis] - before
            places = first + np.arange(self.kernel_shape[axis]) * self.dilations[axis]
            low, high = (-before, size + after) if include_pad else (0, size)
            along = np.count_nonzero((places >= low) & (places < high), axis=1)
            counts = counts * along.reshape((-1,) + (1,) * (len(result) - axis - 1))
        return (1 / np.maximum(counts, 1)).astype(np.float32)

    def add_windows(self, full: Array, values: Array, first_row: int = 0) -> None:
        """Add windows [N, positions…, taps…, C] at their places in a padded image [N, spatial…, C].

        Args:
            full: the padded image.
            values: the windows.
            first_row: position of the first window along the first axis.
        """
        counts = values.shape[1 : 1 + self.rank]
        starts = (first_row, *(0,) * (self.rank - 1))
        for tap in self.taps():
            steps = zip(tap, counts, starts, strict=True)
            places: Any = [self.along(axis, step, count, start) for axis, (step, count, start) in enumerate(steps)]
            elements: Any = (slice(None),) * (1 + self.rank) + tap
            full[(slice(None), *places)] += values[elements]
