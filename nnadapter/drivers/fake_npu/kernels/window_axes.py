"""What windows over any number of spatial axes of [N, C, …] need: padded copies, and sums of what overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array


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
