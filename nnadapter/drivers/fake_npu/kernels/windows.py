"""Windows of convolutions and pools: padding, strides and dilation, for any number of axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import Parameters
from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.ir.operand import Array


class Window(NamedTuple):
    """A window that slides over spatial axes; tuples have one value per axis, in the image's order."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Begin of every axis, then end of every axis."""

    @classmethod
    def of(cls, parameters: Parameters) -> Window:
        """The window that an instruction's parameters describe."""
        names = ("kernel_shape", "strides", "dilations", "pads")
        return cls(**{name: tuple(parameters[name]) for name in names})

    @property
    def begins(self) -> tuple[int, ...]:
        """The padding before every axis."""
        return self.pads[: len(self.kernel_shape)]

    @property
    def is_pointwise(self) -> bool:
        """True where every output is made from the one element at its own place."""
        return {*self.kernel_shape, *self.strides} <= {1} and not any(self.pads)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every place in the window, the last axis fastest."""
        return product(*map(range, self.kernel_shape))

    def extent(self, axis: int) -> int:
        """Elements along an axis from the first that one window reads to the last."""
        return (self.kernel_shape[axis] - 1) * self.dilations[axis] + 1

    def reach(self, result: Sequence[int]) -> tuple[int, ...]:
        """Padded elements along every axis that windows of `result` positions read."""
        return tuple((count - 1) * self.strides[axis] + self.extent(axis) for axis, count in enumerate(result))

    def along(self, axis: int, tap: int, count: int) -> slice:
        """What one tap reads along a padded axis, for `count` positions."""
        start, stride = tap * self.dilations[axis], self.strides[axis]
        return slice(start, start + (count - 1) * stride + 1, stride)

    def needs_copy(self, image: Sequence[int], result: Sequence[int]) -> bool:
        """Whether windows reach outside an image; sizes are those of the spatial axes."""
        return any(self.begins) or any(far > size for far, size in zip(self.reach(result), image, strict=True))

    def shares(self, image: Sequence[int], result: Sequence[int], *, include_pad: bool) -> Array:
        """One over the number of elements of each window that count, in the dimensions of `result`, in float32.

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

    def views(self, padded: Array, result: Sequence[int]) -> Array:
        """All windows of a padded [C, …], as a view [C, taps…, positions…]."""
        strides = padded.strides[1:]
        taps = [step * dilation for step, dilation in zip(strides, self.dilations, strict=True)]
        positions = [step * stride for step, stride in zip(strides, self.strides, strict=True)]
        shape = (padded.shape[0], *self.kernel_shape, *result)
        return as_strided(padded, shape, (padded.strides[0], *taps, *positions), writeable=False)


def bind_padding(x: Array, padded: Array, begins: Sequence[int], fill: float) -> Run:
    """Bind the copy of [.., spatial…] into `padded`, `fill` around it; what does not fit at the end is left out."""
    leading = (slice(None),) * (x.ndim - len(begins))
    room = padded.shape[len(leading) :]
    kept = [min(size, far - begin) for size, far, begin in zip(x.shape[len(leading) :], room, begins, strict=True)]
    inside: tuple[slice, ...] = (
        *leading,
        *(slice(begin, begin + size) for begin, size in zip(begins, kept, strict=True)),
    )
    source = x[(*leading, *map(slice, kept))]
    return in_sequence([partial(np.copyto, padded, fill), partial(np.copyto, padded[inside], source)])


def bind_overlap(columns: Array, window: Window, full: Array, out: Array) -> Run:
    """Bind the sum of blocks where they lie in an image.

    Args:
        columns: [C, taps…, positions…].
        window: where the blocks lie in the padded image.
        full: the padded image, [C, …]; may be larger than what blocks cover.
        out: the image, cut out of `full`.
    """
    rank = len(window.kernel_shape)
    positions = columns.shape[1 + rank :]
    pairs = []
    for tap in window.taps():
        places = (
            window.along(axis, step, count) for axis, (step, count) in enumerate(zip(tap, positions, strict=True))
        )
        values: tuple[slice | int, ...] = (slice(None), *tap)
        pairs.append((full[(slice(None), *places)], columns[values]))
    inside = tuple(slice(begin, begin + size) for begin, size in zip(window.begins, out.shape[1:], strict=True))
    image = full[(slice(None), *inside)]

    def run() -> None:
        full[...] = 0
        for target, block in pairs:
            np.add(target, block, target)
        np.copyto(out, image)

    return run
