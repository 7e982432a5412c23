"""Kernel types, and checks of indices.

What a kernel is: a function that binds an instruction to its buffers, once, and gives back what to call per run.

Everything that depends on shapes is decided while binding. What is called per run has no arguments, writes its
outputs in place and allocates nothing large. The law of this folder: a kernel never writes to its inputs, and it
reads each input before it writes the output at the same place if it declares that input in `in_place`.
Floating-point warnings are off while a program runs, so kernels may overflow where the result is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.errors import InputValueError
from nnadapter.ir.operand import Array

Run = Callable[[], object]
"""One bound instruction; what it returns is not looked at."""
Finish = Callable[[Array], Run]
"""Binds the fused activation to a contiguous array, to be applied in place."""


class KernelArguments(NamedTuple):
    """One instruction with the arrays that it works on; a tuple, since that is made in half the time."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    scratch: tuple[Array, ...]
    """What the kernel's `scratch` asked for."""
    parameters: Parameters
    finish: Finish | None = None
    """The fused activation; only kernels with `fuses` are given one, and they must bind it to all of their output."""


class Outline(NamedTuple):
    """One instruction before it has memory."""

    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]
    parameters: Parameters


Bind = Callable[[KernelArguments], Run]
ScratchRule = Callable[[Outline], tuple[TensorType, ...]]
"""Gives the types of the scratch buffers."""


def no_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The scratch rule of kernels that need none."""
    return ()


class NumpyKernel(NamedTuple):
    """One row of the kernel table."""

    bind: Bind
    scratch: ScratchRule = no_scratch
    in_place: tuple[int, ...] = ()
    """Inputs whose memory the first output may take over, where dimensions and data type are equal."""
    fuses: bool = False
    """Can apply an activation to its output."""


def in_sequence(steps: Sequence[Run]) -> Run:
    """One callable that runs `steps` in order."""
    if len(steps) == 1:
        return steps[0]
    steps = tuple(steps)

    def run() -> None:
        for step in steps:
            step()

    return run


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
