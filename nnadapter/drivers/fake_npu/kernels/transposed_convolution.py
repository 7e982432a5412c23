"""Transposed convolution over images [N, H, W, C]: products of pixels and filter, added where they overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import GEMM_BLOCK_BYTES, blocks
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.matrix import bind_epilogue
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array


def pack_transposed_filter(weight: Array, *, group: int) -> Array:
    """[C, O / group, kH, kW] -> [group, C / group, kH * kW * O / group], contiguous."""
    channels, outputs, height, width = weight.shape
    grouped = weight.reshape(group, channels // group, outputs, height, width)
    return np.ascontiguousarray(grouped.transpose(0, 1, 3, 4, 2)).reshape(group, channels // group, -1)


def _blocks_of_inputs(image: tuple[int, ...], row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cut images [N, H, W, C] into rows, or whole images, whose products with a transposed filter fit one block."""
    pixels = max(1, GEMM_BLOCK_BYTES // row_bytes)
    rows = max(1, min(image[1], pixels // image[2]))
    at_once = max(1, pixels // (image[1] * image[2])) if rows == image[1] else 1
    for images in blocks(image[0], at_once):
        for some in blocks(image[1], rows):
            yield images, some


def _transposed_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The products of one block of inputs with every tap of one group's filter."""
    image, columns = outline.inputs[0].dimensions, outline.inputs[1].dimensions[2]
    images, rows = next(_blocks_of_inputs(image, columns * 4))
    return (TensorType("float32", (images.stop * rows.stop * image[2], columns)),)


def _bind_transposed(call: KernelArguments) -> Run:
    """Each input pixel times the filter, put or added where the window lies in the output."""
    (x, weight, *bias), (out,), (products,) = call.inputs, call.outputs, call.scratch
    window = Window.of(call.parameters)
    finish = in_sequence(bind_epilogue(out, bias[0] if bias else None, call.finish))
    pieces = [
        piece
        for images, rows in _blocks_of_inputs(x.shape, products.shape[1] * 4)
        for piece in _products(x[images, rows], weight, window, out[images], products, rows.start)
    ]
    reaches = zip(window.kernel_shape, window.dilations, window.strides, strict=True)
    overlap = any((size - 1) * dilation + 1 > stride for size, dilation, stride in reaches)
    covered = (
        not overlap
        and window.kernel_shape == window.strides
        and not any(window.pads)
        and out.size == _reach(x, weight, window)
    )

    def run() -> None:
        if not covered:
            out[...] = 0
        for pixels, factor, product, places in pieces:
            np.matmul(pixels, factor, product)
            for target, values in places:
                if overlap:
                    np.add(target, values, target)
                else:
                    np.copyto(target, values)
        finish()

    return run


def _reach(x: Array, weight: Array, window: Window) -> int:
    """Elements of an output that windows side by side cover exactly."""
    outputs: int = weight.shape[0] * weight.shape[2] // (window.kernel_shape[0] * window.kernel_shape[1])
    pixels: int = x.shape[0] * x.shape[1] * window.strides[0] * x.shape[2] * window.strides[1]
    return pixels * outputs


_Piece = tuple[Array, Array, Array, list[tuple[Array, Array]]]
"""Pixels, filter, their products, and where these go."""


def _products(block: Array, weight: Array, window: Window, out: Array, products: Array, start: int) -> list[_Piece]:
    """The products of a block of input rows [n, h, W, C], from row `start` on, one piece per group of channels."""
    groups, group_channels, columns = weight.shape
    outputs = columns // (window.kernel_shape[0] * window.kernel_shape[1])
    pixels = block.reshape(-1, block.shape[3])
    product = products[: pixels.shape[0]]
    values = product.reshape(*block.shape[:3], *window.kernel_shape, outputs)
    pieces = []
    for group in range(groups):
        part = pixels[:, group * group_channels : (group + 1) * group_channels]
        target = out[..., group * outputs : (group + 1) * outputs]
        pieces.append((part, weight[group], product, _places(values, target, window, start)))
    return pieces


def _places(values: Array, out: Array, window: Window, start: int) -> list[tuple[Array, Array]]:
    """For every tap, where its products go: pairs of views of `out` [n, H, W, O] and `values` [n, h, w, kH, kW, O].

    Input row r contributes with tap i to output row (start + r) * stride + i * dilation - top; what falls outside
    is left out.
    """
    view_pairs = []
    for row, column in window.taps():
        top = start * window.strides[0] + row * window.dilations[0] - window.pads[0]
        left = column * window.dilations[1] - window.pads[1]
        read_rows, write_rows = _landing(values.shape[1], out.shape[1], window.strides[0], top)
        read_columns, write_columns = _landing(values.shape[2], out.shape[2], window.strides[1], left)
        target = out[:, write_rows, write_columns]
        if target.size:
            view_pairs.append((target, values[:, read_rows, read_columns, row, column]))
    return view_pairs


def _landing(count: int, size: int, stride: int, offset: int) -> tuple[slice, slice]:
    """Which of `count` inputs land inside an axis of `size` at index * stride + offset, and where they land."""
    first = max(0, -(offset // stride))
    last = min(count, -((offset - size) // stride))
    if last <= first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last), slice(first * stride + offset, (last - 1) * stride + offset + 1, stride)


KERNELS: Mapping[str, NumpyKernel] = {
    "transposed_convolution": NumpyKernel(bind=_bind_transposed, scratch=_transposed_scratch, fuses=True)
}
"""Rows of the kernel table."""
