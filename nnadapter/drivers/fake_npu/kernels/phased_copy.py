"""Padded copies of images [N, H, W, C] in which every step of a sliding window reads whole runs.

The copy has dimensions [N, rows, phases, columns, C]. Padded column q * phases + p is kept at [p, q]; with as many
phases as the window's horizontal stride, the pixels that one tap of the window reads for neighboring outputs lie
side by side, so that one numpy call handles a whole row of outputs and their channels as one contiguous run.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.kernels.copying import bind_copy
from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array


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
