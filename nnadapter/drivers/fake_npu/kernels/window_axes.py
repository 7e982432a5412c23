"""Windows over any number of spatial axes of [N, C, …]: padded copies, views, and sums of what overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import Parameters
from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.ir.operand import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAxes:
    """A window that slides over spatial axes; lists have one value per axis."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Begin of every axis, then end of every axis."""

    @classmethod
    def of(cls, parameters: Parameters) -> WindowAxes:
        """The window that an instruction's parameters describe."""
        names = ("kernel_shape", "strides", "dilations", "pads")
        return cls(**{name: tuple(parameters[name]) for name in names})

    @property
    def begins(self) -> tuple[int, ...]:
        """The padding before every axis."""
        return self.pads[: len(self.kernel_shape)]

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every place in the window, the last axis fastest."""
        return product(*map(range, self.kernel_shape))

    def reach(self, result: Sequence[int]) -> tuple[int, ...]:
        """Padded elements along every axis that windows of `result` positions read."""
        return tuple(
            (count - 1) * stride + (size - 1) * dilation + 1
            for count, size, stride, dilation in zip(
                result, self.kernel_shape, self.strides, self.dilations, strict=True
            )
        )

    def along(self, axis: int, tap: int, count: int) -> slice:
        """What one tap reads along a padded axis, for `count` positions."""
        start, stride = tap * self.dilations[axis], self.strides[axis]
        return slice(start, start + (count - 1) * stride + 1, stride)

    def needs_copy(self, image: Sequence[int], result: Sequence[int]) -> bool:
        """Whether windows reach outside an image; sizes are those of the spatial axes."""
        return any(self.begins) or any(far > size for far, size in zip(self.reach(result), image, strict=True))

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


def bind_overlap(columns: Array, window: WindowAxes, full: Array, out: Array) -> Run:
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
