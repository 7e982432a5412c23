"""Sums over many elements, in two steps: thousands of terms added one by one to the same float lose digits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.ir.operand import Array


def partial_sums(type_: TensorType, axes: Sequence[int]) -> tuple[TensorType, ...]:
    """Scratch for sums along one of several axes; nothing where there is but one, which needs one step."""
    if len(axes) < 2:
        return ()
    return (reduced(type_, (_first_axis(len(type_.dimensions), axes),)),)


def reduced(type_: TensorType, axes: Sequence[int]) -> TensorType:
    """The type with these axes of size 1."""
    return TensorType(type_.dtype, tuple(1 if axis in axes else size for axis, size in enumerate(type_.dimensions)))


def _first_axis(rank: int, axes: Sequence[int]) -> int:
    """The axis to sum along first: the last one, where elements lie side by side, or else the one before the last."""
    return axes[-1] if axes[-1] == rank - 1 else axes[-2]


def bind_summation(x: Array, out: Array, axes: Sequence[int], scratch: Sequence[Array]) -> Run:
    """Sum `x` over `axes` into `out`, which has those axes with size 1 or not at all.

    Args:
        x: any dimensions.
        out: the sums; numpy would add narrow integers in a wider type, here they wrap around.
        axes: of `x`.
        scratch: as `partial_sums` says.
    """
    axes, keepdims = tuple(axes), out.ndim == x.ndim
    if not scratch:
        return lambda: np.add.reduce(x, axis=axes, dtype=out.dtype, out=out, keepdims=keepdims)
    (part,) = scratch
    first = _first_axis(x.ndim, axes)

    def run() -> None:
        np.add.reduce(x, axis=first, dtype=part.dtype, out=part, keepdims=True)
        np.add.reduce(part, axis=axes, dtype=out.dtype, out=out, keepdims=keepdims)

    return run
