"""Kernels of the device: their type, blocks that stay in cache, and checks of indices.

A kernel is a function that is called as `run(*outputs, *inputs, **parameters)`. It writes its outputs and never its
inputs. An input that it declares in `in_place` may lie in the memory of the first output: the kernel reads each
element before it writes the one at the same place. Warnings of floating-point arithmetic are off during a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array

Run = Callable[[], object]
"""One instruction with its arrays."""
Finish = Callable[[Array], None]
"""Applies the fused activation to a contiguous array, in place."""
BLOCK_ELEMENTS = 32768
"""Elements of one block of elementwise work: 128 KiB of float32, so that several fit a level-2 cache."""


class NumpyKernel(NamedTuple):
    """One row of the kernel table."""

    run: Callable[..., None]
    in_place: tuple[int, ...] = ()
    """Inputs whose memory the first output may take over, if dimensions and data type are equal."""
    fuses: bool = False
    """Takes `finish`, the fused activation, and applies it to its whole output."""


def blocks(total: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover `range(total)`."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def even_blocks(total: int, step: int) -> Iterator[slice]:
    """Yield slices of about `step` that cover `range(total)` without a small rest."""
    return blocks(total, -(-total // max(1, round(total / step))) or 1)


def check_indices(indices: Array, size: int) -> None:
    """Raise InputValueError unless every index is in [-size, size)."""
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        index_range = f"from {indices.min()} to {indices.max()}"
        raise InputValueError(f"an index is out of bounds: got indices {index_range} for an axis of {size} elements")


def flat_positions(indices: Array, sizes: Sequence[int]) -> Array:
    """Return the positions of rows of indices [..., axes] in the flattened axes of `sizes`."""
    positions = np.zeros(indices.shape[:-1], np.int64)
    for axis, size in enumerate(sizes):
        column = indices[..., axis]
        check_indices(column, size)
        positions = positions * size + np.where(column < 0, column + size, column)
    return positions
