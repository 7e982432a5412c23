"""Convolution by matrix product: the windows of a block of outputs become the rows of one matrix.

Images are [N, H, W, C]. The filter [O, C / group, kH, kW] is packed at compile time as [group, kH * kW * C / group,
O / group], so that a window's elements lie in the order in which they are copied: row, column, channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import blocks, even_blocks, gemm_rows
from nnadapter.drivers.fake_npu.kernels.copying import bind_padded_copy, copy_dimensions
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.matrix import bind_epilogue, bind_rows
from nnadapter.drivers.fake_npu.kernels.window_matrix import bind_window_matrix
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

_SMALL_COPY_BYTES = 1 << 19
"""A padded copy no larger costs less than the calls that windows at the borders take."""


def pack_filter(weight: Array, *, group: int) -> Array:
    """[O, C / group, kH, kW] -> [group, kH * kW * C / group, O / group], contiguous."""
    outputs, channels, height, width = weight.shape
    grouped = weight.reshape(group, outputs // group, channels, height, width)
    return np.ascontiguousarray(grouped.transpose(0, 3, 4, 2, 1)).reshape(group, -1, outputs // group)


def _bind_pointwise(call: KernelArguments) -> Run:
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    rows, result = x.reshape(-1, x.shape[3]), out.reshape(-1, out.shape[3])
    return bind_rows(rows, weight[0], bias[0] if bias else None, result, call.finish)


def _output_blocks(result: tuple[int, ...], row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cut outputs [N, H, W, C] into blocks of whole rows, or of whole images where these are small."""
    images, height, width = result[:3]
    limit = gemm_rows(row_bytes)
    images_at_once = max(1, limit // (height * width))
    whole = images_at_once > 1
    for some in blocks(images, images_at_once):
        for rows in even_blocks(height, height if whole else max(1, limit // width)):
            yield some, rows


def _convolution_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The matrix of one block, then the padded copy of a small image.

    None where each window is one pixel, which lies in the image as it would in a matrix.
    """
    window = Window.of(outline.parameters)
    if window.is_pointwise:
        return ()
    image, result, depth = outline.inputs[0].dimensions, outline.outputs[0].dimensions, outline.inputs[1].dimensions[1]
    rows = max(_block_rows(block, result) for block in _output_blocks(result, depth * 4))
    needed = [TensorType(outline.inputs[0].dtype, (rows, depth))]
    padded = copy_dimensions(window, image, result, 1)
    copy = None if padded is None else TensorType(outline.inputs[0].dtype, padded)
    needed += [copy] if copy is not None and copy.nbytes <= _SMALL_COPY_BYTES else []
    return tuple(needed)


def _block_rows(block: tuple[slice, slice], result: tuple[int, ...]) -> int:
    images, rows = block
    return int(images.stop - images.start) * int(rows.stop - rows.start) * result[2]


def _bind_convolution(call: KernelArguments) -> Run:
    (image, weight, *bias), (out,), window = call.inputs, call.outputs, Window.of(call.parameters)
    groups, depth, group_outputs = weight.shape
    steps: list[Run] = []
    if len(call.scratch) > 1:
        steps.append(bind_padded_copy(image, call.scratch[1], window, 0.0))
        image, window = call.scratch[1][:, :, 0], window._replace(pads=(0, 0, 0, 0))
    for images, rows in _output_blocks(out.shape, depth * 4):
        block = out[images, rows]
        target = block.reshape(-1, out.shape[3])
        for group in range(groups):
            channels = slice(group * image.shape[3] // groups, (group + 1) * image.shape[3] // groups)
            product = target[:, group * group_outputs : (group + 1) * group_outputs]
            if call.scratch:
                columns = call.scratch[0][: target.shape[0]]
                windows = columns.reshape(*block.shape[:3], *window.kernel_shape, -1)
                steps += bind_window_matrix(image[images, :, :, channels], window, rows, windows)
            else:
                columns = image[images, rows].reshape(target.shape[0], -1)[:, channels]
            steps.append(partial(np.matmul, columns, weight[group], product))
        steps += bind_epilogue(target, bias[0] if bias else None, call.finish)
    return in_sequence(steps)


KERNELS: Mapping[str, NumpyKernel] = {
    "convolution": NumpyKernel(bind=_bind_convolution, scratch=_convolution_scratch, fuses=True),
    "pointwise_convolution": NumpyKernel(bind=_bind_pointwise, fuses=True),
}
"""Rows of the kernel table."""
