"""Copies between arrays of different strides, also phase by phase for strided windows.

Copies between strided arrays, by whole runs of elements.

numpy copies an axis at a time: where what lies side by side is a few elements only, starting each run costs more than
copying it. Seen as items of that many bytes, the same elements are copied along a longer axis, in half the time.

Padded copies of images [N, H, W, C] in which every step of a sliding window reads whole runs.

The copy has dimensions [N, rows, phases, columns, C]. Padded column q * phases + p is kept at [p, q]; with as many
phases as the window's horizontal stride, the pixels that one tap of the window reads for neighboring outputs lie
side by side, so that one numpy call handles a whole row of outputs and their channels as one contiguous run.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

_ITEM_BYTES = range(8, 257)
"""Runs that are copied as items; shorter and longer ones gain nothing."""
_FEWEST_ITEMS = 16
"""Fewer are copied as fast without."""
_SHORT_AXIS, _LONG_AXIS = 8, 16
"""An innermost axis so short is taken apart if the one before it is so long."""


def bind_copy(source: Array, target: Array) -> Run:
    """Bind the copy of all elements of `source` to `target`.

    Args:
        source: any strides.
        target: the same dimensions and data type; must not overlap with `source`.
    """
    run_axes, run = _common_run(source, target)
    if source.ndim > run_axes and run * source.itemsize in _ITEM_BYTES and source.size >= _FEWEST_ITEMS * run:
        source, target = _as_items(source, run_axes, run), _as_items(target, run_axes, run)
    elif run > 1:
        return partial(np.copyto, target, source)
    if target.ndim > 1 and target.shape[-1] < _SHORT_AXIS and target.shape[-2] >= _LONG_AXIS:
        places = range(target.shape[-1])
        return in_sequence([partial(np.copyto, target[..., place], source[..., place]) for place in places])
    return partial(np.copyto, target, source)


def has_short_runs(array: Array, axis: int) -> bool:
    """Whether an array, whole from some axis on, is many runs there that gain from being copied as items."""
    shape = array.shape
    return prod(shape[:axis]) >= _FEWEST_ITEMS and prod(shape[axis:]) * array.itemsize < _ITEM_BYTES.stop


def bind_copies(pairs: list[tuple[Array, Array]]) -> Run:
    """Bind the copies of several (source, target) in order."""
    return in_sequence([bind_copy(source, target) for source, target in pairs])


def _common_run(source: Array, target: Array) -> tuple[int, int]:
    """How many trailing axes lie side by side in both, and how many elements these are."""
    axes, elements, nbytes = 0, 1, source.itemsize
    for size, stride, target_stride in zip(source.shape[::-1], source.strides[::-1], target.strides[::-1], strict=True):
        if size != 1 and not stride == target_stride == nbytes:
            break
        axes, elements, nbytes = axes + 1, elements * size, nbytes * size
    return axes, elements


def _as_items(array: Array, run_axes: int, run: int) -> Array:
    """The array without its last `run_axes` axes, whose `run` elements are one item each."""
    leading = array.shape[: array.ndim - run_axes]
    # These axes lie side by side, so it is no copy.
    return array.reshape(*leading, run).view(f"V{run * array.itemsize}")[..., 0]


def copy_dimensions(
    window: Window, image: tuple[int, ...], result: tuple[int, ...], phases: int
) -> tuple[int, ...] | None:
    """Return the dimensions of the padded copy; None where the image can be read as it lies.

    Args:
        window: of two axes.
        image: [N, H, W, C].
        result: what its windows make, [N, H, W, C].
        phases: 1, or the window's horizontal stride.
    """
    if phases == 1 and not window.needs_copy(image[1:3], result[1:3]):
        return None
    rows, columns = window.reach(result[1:3])
    if phases > 1:
        columns = result[2] + (window.extent(1) - 1) // phases
    return (image[0], rows, phases, columns, image[3])


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
