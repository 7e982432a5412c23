"""Kernels between integers and reals, element by element, and functions of 8-bit integers as tables.

Scales and zero points are constants: one element, or one for each index of the axis that `axis` names (-1 for none).
They are float32, in which every zero point of 8 and 16 bits is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import BLOCK_ELEMENTS, NumpyKernel, blocks
from nnadapter.ir.operand import Array


def _pieces(arrays: Sequence[Array], values: Sequence[Array], axis: int) -> Iterator[list[Array]]:
    """Yield blocks of contiguous arrays of equal dimensions, each with the values that belong to it."""
    sizes = arrays[0].shape
    shape = (prod(sizes[:axis]), sizes[axis], prod(sizes[axis + 1 :])) if axis >= 0 else (prod(sizes), 1, 1)
    matrices, spread = [array.reshape(shape) for array in arrays], [value.reshape(1, -1, 1) for value in values]
    for some in blocks(shape[0], max(1, BLOCK_ELEMENTS // max(1, shape[1] * shape[2]))):
        yield [*(matrix[some] for matrix in matrices), *spread]


def to_integers(
    out: Array, x: Array, scale: Array, zero_point: Array, *, combine: np.ufunc, axis: int, minimum: int, maximum: int
) -> None:
    """Write reals as integers: combined with a scale, rounded half to even, moved and saturated.

    `fmax` takes a bound if the real is not a number, as the saturating instructions of processors do.
    """
    for real, target, factor, point in _pieces((x, out), (scale, zero_point), axis):
        # Sums are rounded to float32 before they are scaled, as by ONNX Runtime.
        scaled = combine(real.astype(np.float32), factor)
        np.rint(scaled, scaled)
        scaled += point
        np.fmax(scaled, np.float32(minimum), out=scaled)
        np.minimum(scaled, np.float32(maximum), out=scaled)
        np.copyto(target, scaled, casting="unsafe")


def center(out: Array, x: Array, zero_point: Array, *, axis: int) -> None:
    """Subtract the zero point; the result is float32 or float64, in which all of this is exact."""
    for integers, target, point in _pieces((x, out), (zero_point,), axis):
        np.subtract(integers, point, target, casting="same_kind")


def dequantize(out: Array, x: Array, zero_point: Array, scale: Array, *, axis: int) -> None:
    """Subtract the zero point, and multiply by the scale."""
    for integers, target, point, factor in _pieces((x, out), (zero_point, scale), axis):
        # int32 minus float32 is computed in float64, so that it is rounded once.
        np.subtract(integers, point, target, casting="same_kind")
        np.multiply(target, factor, target)


def look_up(out: Array, x: Array, table: Array) -> None:
    """Look up 8-bit integers by their bits in a table of 256 results."""
    x, out = x.reshape(-1).view(np.uint8), out.reshape(-1)
    for block in blocks(x.size, BLOCK_ELEMENTS):
        np.take(table, x[block], out=out[block], mode="clip")


KERNELS: Mapping[str, NumpyKernel] = {
    "center": NumpyKernel(center),
    "dequantize": NumpyKernel(dequantize),
    "look_up": NumpyKernel(look_up),
    "quantize": NumpyKernel(partial(to_integers, combine=np.divide)),
    "requantize": NumpyKernel(partial(to_integers, combine=np.multiply)),
}
"""Rows of the kernel table."""
