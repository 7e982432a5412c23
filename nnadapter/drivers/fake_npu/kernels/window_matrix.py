"""Windows of an image as rows of a matrix, straight from the image: what lies outside it is written as zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.kernels.copying import bind_copy
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

_Stretch = tuple[slice, slice]
"""Outputs side by side along one axis, and the taps of their windows that lie inside the image."""


def bind_window_matrix(image: Array, window: Window, rows: slice, windows: Array) -> list[Run]:
    """Bind what copies every window of a block of output rows; windows outside the image are zeros.

    Args:
        image: [N, H, W, C], which may be some channels of a wider image.
        window: the filter's geometry.
        rows: the output rows of the block.
        windows: where the windows go, [N, rows, columns, kH, kW, C].
    """
    columns = slice(0, windows.shape[2])
    steps: list[Run] = []
    for some_rows, row_taps in _stretches(window, 0, image.shape[1], rows):
        for some_columns, column_taps in _stretches(window, 1, image.shape[2], columns):
            part = windows[:, some_rows.start - rows.start : some_rows.stop - rows.start, some_columns]
            inside = part[:, :, :, row_taps, column_taps]
            if inside.size < part.size:
                steps.append(partial(np.copyto, part, 0.0))
            if inside.size:
                places = ((some_rows, row_taps), (some_columns, column_taps))
                steps.append(bind_copy(_read(image, window, places, inside.shape), inside))
    return steps


def _stretches(window: Window, axis: int, size: int, outputs: slice) -> list[_Stretch]:
    """Cut outputs along an axis of `size` pixels where the taps that lie inside the image change.

    Only the outputs at the borders are looked at one by one.
    """
    stride, pad, step = window.strides[axis], window.pads[axis], window.dilations[axis]
    kernel = window.kernel_shape[axis]
    first_whole = -(-pad // stride)
    after_whole = (size - 1 - (kernel - 1) * step + pad) // stride + 1
    begin = min(max(first_whole, outputs.start), outputs.stop)
    end = min(max(after_whole, begin), outputs.stop)

    def taps(output: int) -> tuple[int, int]:
        start = output * stride - pad
        first = max(0, -(start // step))
        return first, max(first, min(kernel, -((start - size) // step)))

    stretches = [*_runs(range(outputs.start, begin), taps)]
    if end > begin:
        stretches.append((slice(begin, end), slice(0, kernel)))
    return [*stretches, *_runs(range(end, outputs.stop), taps)]


def _runs(outputs: range, taps: Callable[[int], tuple[int, int]]) -> Iterator[_Stretch]:
    """Neighbors with the same taps together."""
    for (first, last), members in groupby(outputs, taps):
        places = list(members)
        yield slice(places[0], places[-1] + 1), slice(first, last)


def _read(image: Array, window: Window, places: tuple[_Stretch, _Stretch], result: tuple[int, ...]) -> Array:
    """A view of what the windows of some outputs read, [N, rows, columns, kH, kW, C]; all of it lies inside."""
    corner = [
        outputs.start * window.strides[axis] + taps.start * window.dilations[axis] - window.pads[axis]
        for axis, (outputs, taps) in enumerate(places)
    ]
    batch, row, column, element = image.strides
    return as_strided(
        image[:, corner[0] :, corner[1] :],
        result,
        (
            batch,
            row * window.strides[0],
            column * window.strides[1],
            row * window.dilations[0],
            column * window.dilations[1],
            element,
        ),
        writeable=False,
    )
