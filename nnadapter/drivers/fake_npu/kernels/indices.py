"""Indices that tensors hold: checks, and rows of them as places in flattened axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array


def check_indices(indices: Array, size: int) -> None:
    """Raise InputValueError unless every index is in [-size, size)."""
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        index_range = f"from {indices.min()} to {indices.max()}"
        raise InputValueError(f"an index is out of bounds: got indices {index_range} for an axis of {size} elements")


def bind_places(indices: Array, sizes: Sequence[int], places: Array, spare: Array) -> Run:
    """Bind the places that rows of indices have in axes of `sizes` flattened to one.

    Args:
        indices: [..., axes], any integers; negative ones count from the end.
        sizes: of the axes.
        places: where the result goes, int64, the dimensions of `indices` without the last.
        spare: as `places`.
    """

    def run() -> None:
        places[...] = 0
        for axis, size in enumerate(sizes):
            column = indices[..., axis]
            check_indices(column, size)
            np.copyto(spare, column)
            np.add(spare, size, out=spare, where=spare < 0)
            np.multiply(places, size, places)
            np.add(places, spare, places)

    return run
