"""Kernels between integers and reals, element by element; and functions of 8-bit integers as tables.

Scales and zero points are constants: one element, or one for each index of the axis that the parameter `axis` names
(-1 for none). They are float32, in which every zero point of 8 and 16 bits is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.ir.operand import Array


def _split(dimensions: Sequence[int], axis: int) -> tuple[int, int]:
    """Rows and columns of a matrix in which `axis` is all of the columns, or does not change within a row."""
    if axis < 0:
        return 1, prod(dimensions)
    inner = prod(dimensions[axis + 1 :])
    return (prod(dimensions[:axis]), dimensions[axis]) if inner == 1 else (prod(dimensions[: axis + 1]), inner)


def _block_size(dimensions: Sequence[int], axis: int) -> tuple[int, int]:
    """Rows and columns of the largest block."""
    rows, columns = _split(dimensions, axis)
    if axis < 0:
        return 1, min(columns, BLOCK_ELEMENTS)
    return min(rows, max(1, BLOCK_ELEMENTS // max(columns, 1))), columns


def _pieces(arrays: Sequence[Array], values: Sequence[Array], axis: int) -> Iterator[list[Array]]:
    """Blocks of `arrays`, of equal dimensions, each with the `values` that belong to it.

    Args:
        arrays: contiguous.
        values: one element, or one for each index of `axis`.
        axis: -1 for none.
    """
    dimensions = arrays[0].shape
    rows, columns = _split(dimensions, axis)
    matrices = [array.reshape(rows, columns) for array in arrays]
    height, width = _block_size(dimensions, axis)
    if axis < 0:
        for block in blocks(columns, width):
            yield [*(matrix[:, block] for matrix in matrices), *(value.reshape(1, 1) for value in values)]
        return
    along_rows = prod(dimensions[axis + 1 :]) != 1
    spread = [
        np.tile(value, rows // dimensions[axis])[:, None] if along_rows and value.size > 1 else value.reshape(1, -1)
        for value in values
    ]
    for block in blocks(rows, height):
        chosen = (value[block] if value.shape[0] > 1 else value for value in spread)
        yield [*(matrix[block] for matrix in matrices), *chosen]


def _block_scratch(outline: Outline) -> tuple[TensorType, ...]:
    return (TensorType("float32", (prod(_block_size(outline.outputs[0].dimensions, outline.parameters["axis"])),)),)


def to_integers(combine: Callable[..., object], low: float, high: float) -> Callable[..., None]:
    """The function that writes reals as integers: combined with a scale, rounded half to even, moved and saturated.

    `fmax` takes a bound where the real is not a number, as the saturating instructions of processors do.
    """
    smallest, largest = np.float32(low), np.float32(high)

    def convert(x: Array, out: Array, scale: Array, zero_point: Array, reals: Array) -> None:
        reals = reals[: x.size].reshape(x.shape)
        # Sums are rounded to float32 before they are scaled, as ONNX Runtime does it.
        np.copyto(reals, x, casting="same_kind")
        combine(reals, scale, reals)
        np.rint(reals, reals)
        np.add(reals, zero_point, reals)
        np.fmax(reals, smallest, out=reals)
        np.minimum(reals, largest, out=reals)
        np.copyto(out, reals, casting="unsafe")

    return convert


def _bind_to_integers(combine: Callable[..., object]) -> Callable[[KernelArguments], Run]:
    """Inputs: reals, scale or factor, zero point. Parameters: axis, minimum and maximum of the result."""

    def bind(call: KernelArguments) -> Run:
        (x, scale, zero_point), (out,), parameters = call.inputs, call.outputs, call.parameters
        convert = to_integers(combine, parameters["minimum"], parameters["maximum"])
        pieces = _pieces((x, out), (scale, zero_point), parameters["axis"])
        return in_sequence([partial(convert, *piece, call.scratch[0]) for piece in pieces])

    return bind


def _center(x: Array, out: Array, zero_point: Array) -> None:
    np.subtract(x, zero_point, out, casting="same_kind")


def _to_reals(x: Array, out: Array, zero_point: Array, scale: Array) -> None:
    # int32 minus float32 is computed in float64, so that it is rounded once.
    np.subtract(x, zero_point, out, casting="same_kind")
    np.multiply(out, scale, out)


def _bind_center(call: KernelArguments) -> Run:
    """Inputs: integers, zero point. The result is float32 or float64, in which all of this is exact."""
    (x, zero_point), (out,) = call.inputs, call.outputs
    if not zero_point.any():
        return partial(np.copyto, out, x, casting="same_kind")
    pieces = _pieces((x, out), (zero_point,), call.parameters["axis"])
    return in_sequence([partial(_center, *piece) for piece in pieces])


def _bind_to_reals(call: KernelArguments) -> Run:
    """Inputs: integers, zero point, scale."""
    (x, zero_point, scale), (out,) = call.inputs, call.outputs
    pieces = _pieces((x, out), (zero_point, scale), call.parameters["axis"])
    return in_sequence([partial(_to_reals, *piece) for piece in pieces])


def _look_up(x: Array, table: Array, out: Array) -> None:
    np.take(table, x, out=out, mode="clip")


def _bind_look_up(call: KernelArguments) -> Run:
    """Inputs: integers of 8 bits, and a table of 256 results, by the integer's bits."""
    (x, table), (out,) = call.inputs, call.outputs
    x, out = x.reshape(-1).view(np.uint8), out.reshape(-1)
    return in_sequence([partial(_look_up, x[block], table, out[block]) for block in blocks(x.size, BLOCK_ELEMENTS)])


KERNELS: Mapping[str, NumpyKernel] = {
    "center": NumpyKernel(bind=_bind_center),
    "dequantize": NumpyKernel(bind=_bind_to_reals),
    "look_up": NumpyKernel(bind=_bind_look_up),
    "quantize": NumpyKernel(bind=_bind_to_integers(np.divide), scratch=_block_scratch),
    "requantize": NumpyKernel(bind=_bind_to_integers(np.multiply), scratch=_block_scratch),
}
"""Rows of the kernel table."""
