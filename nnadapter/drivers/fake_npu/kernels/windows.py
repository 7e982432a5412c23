"""Sliding windows over images [N, H, W, C]: their geometry, and a padded copy in which every step reads whole runs.

The copy has dimensions [N, rows, phases, columns, C]. Padded column q * phases + p is kept at [p, q]; with as many
phases as the window's horizontal stride, the pixels that one tap of the window reads for neighbouring outputs lie
side by side, so that one numpy call handles a whole row of outputs and their channels as one contiguous run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters
from nnadapter.drivers.fake_npu.kernels.copying import bind_copy
from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.ir.operand import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of `kernel_shape` that slides over an image; pairs are (vertical, horizontal)."""

    kernel_shape: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    """(top, left, bottom, right)."""

    @classmethod
    def of(cls, parameters: Parameters) -> Window:
        """The window that an instruction's parameters describe."""
        names = ("kernel_shape", "strides", "dilations", "pads")
        return cls(**{name: tuple(parameters[name]) for name in names})

    @property
    def is_pointwise(self) -> bool:
        """True where every output is made from the one pixel at its own place."""
        return self.kernel_shape == (1, 1) and self.strides == (1, 1) and not any(self.pads)

    def taps(self) -> Iterator[tuple[int, int]]:
        """Every (row, column) of the window, row by row."""
        rows, columns = self.kernel_shape
        return ((row, column) for row in range(rows) for column in range(columns))

    def rows(self, height: int) -> int:
        """Padded rows that `height` outputs read."""
        return (height - 1) * self.strides[0] + (self.kernel_shape[0] - 1) * self.dilations[0] + 1

    def columns(self, width: int, phases: int) -> int:
        """Padded columns of one phase that `width` outputs read."""
        reach = (self.kernel_shape[1] - 1) * self.dilations[1]
        if phases == 1:
            return (width - 1) * self.strides[1] + reach + 1
        return width + reach // phases

    def needs_copy(self, image: tuple[int, ...], result: tuple[int, ...], phases: int) -> bool:
        """Whether the windows that make `result` [N, H, W, C] cannot be read from `image` as it lies."""
        outside = self.rows(result[1]) > image[1] or self.columns(result[2], 1) > image[2]
        return phases > 1 or outside or self.pads[0] > 0 or self.pads[1] > 0

    def copy_dimensions(self, image: tuple[int, ...], result: tuple[int, ...], phases: int) -> tuple[int, ...]:
        """Dimensions of the padded copy."""
        return (image[0], self.rows(result[1]), phases, self.columns(result[2], phases), image[3])


def bind_padded_copy(x: Array, copy: Array, window: Window, fill: float) -> Run:
    """Bind the step that fills `copy` from `x`; `fill` is what lies outside the image.

    The copy shares memory with other instructions, so what lies outside is written in every run.
    """
    top, left = window.pads[0], window.pads[1]
    phases = copy.shape[2]
    first_row, last_row = min(top, copy.shape[1]), min(copy.shape[1], x.shape[1] + top)
    outside = [copy[:, :first_row], copy[:, max(last_row, first_row) :]]
    inside = []
    for phase in range(phases):
        plane = copy[:, first_row:last_row, phase]
        # Column q of this phase is image column q * phases + phase - left.
        first = min(max(0, -((phase - left) // phases)), plane.shape[2])
        last = max(first, min(plane.shape[2], -((phase - left - x.shape[2]) // phases)))
        outside += [plane[:, :, :first], plane[:, :, last:]]
        start = first * phases + phase - left
        pixels = x[:, : last_row - first_row, start : start + (last - first) * phases : phases]
        inside.append((plane[:, :, first:last], pixels))
    outside = [strip for strip in outside if strip.size]
    inside = [(target, source) for target, source in inside if target.size]

    return in_sequence(
        [partial(np.copyto, strip, fill) for strip in outside]
        + [bind_copy(source, target) for target, source in inside]
    )
