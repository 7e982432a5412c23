"""Convolutions of volumes [N, C, D, H, W] by matrix products, with filters as ONNX has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import blocks
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.windows import Window, bind_overlap, bind_padding
from nnadapter.ir.operand import Array

_MATRIX_BYTES = 8 << 20
"""Bytes of the matrix of windows that is made at once."""


def _slices_at_once(depth: int, result: Sequence[int]) -> int:
    """How many slices of a result [D, H, W] have a matrix of `depth` rows that is not too large."""
    return int(min(result[0], max(1, _MATRIX_BYTES // (4 * depth * prod(result[1:])))))


def _convolution_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The matrix of a block of windows, the products of a block, and the padded copy of a volume if there is one."""
    window, image, result = (
        Window.of(outline.parameters),
        outline.inputs[0].dimensions,
        outline.outputs[0].dimensions[2:],
    )
    outputs_per_group, *rest = outline.inputs[1].dimensions
    outputs_per_group //= outline.parameters["group"]
    positions = _slices_at_once(prod(rest), result) * prod(result[1:])
    needed = [TensorType("float32", (prod(rest) * positions,)), TensorType("float32", (outputs_per_group * positions,))]
    if window.needs_copy(image[2:], result):
        needed.append(TensorType("float32", (image[1], *window.reach(result))))
    return tuple(needed)


def _bind_convolution(call: KernelArguments) -> Run:
    (x, weight, *bias), (out,), (matrix, products, *padded) = call.inputs, call.outputs, call.scratch
    window, group = Window.of(call.parameters), call.parameters["group"]
    steps: list[Run] = []
    for image, result in zip(x, out, strict=True):
        volume = image
        if padded:
            steps.append(bind_padding(image, padded[0], window.begins, 0.0))
            volume = padded[0]
        for part, rows, target in zip(*(_groups(array, group) for array in (volume, weight, result)), strict=True):
            steps += _products(part, rows, target, window, matrix, products)
    return in_sequence([*steps, *_bias(out, bias)])


def _groups(array: Array, group: int) -> list[Array]:
    return np.split(array, group) if group > 1 else [array]


def _products(volume: Array, weight: Array, result: Array, window: Window, matrix: Array, products: Array) -> list[Run]:
    """The steps for one group: windows of a block as columns of a matrix, the filter times it, to where it goes."""
    rows, steps = weight.reshape(len(weight), -1), list[Run]()
    views = window.views(volume, result.shape[1:])
    for some in blocks(result.shape[1], _slices_at_once(rows.shape[1], result.shape[1:])):
        block, view = result[:, some], views[:, :, :, :, some]
        positions = prod(block.shape[1:])
        columns = matrix[: rows.shape[1] * positions].reshape(view.shape)
        product = products[: len(rows) * positions].reshape(len(rows), positions)
        steps += [
            partial(np.copyto, columns, view),
            partial(np.matmul, rows, columns.reshape(-1, positions), product),
            partial(np.copyto, block, product.reshape(block.shape)),
        ]
    return steps


def _bias(out: Array, bias: Sequence[Array]) -> list[Run]:
    return [partial(np.add, out, channel_bias.reshape(-1, 1, 1, 1), out) for channel_bias in bias]


def _transposed_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The products of one volume with every tap of one group's filter, and the result before it is cropped."""
    volume, (_, channels, *kernel) = outline.inputs[0].dimensions, outline.inputs[1].dimensions
    window, result = Window.of(outline.parameters), outline.outputs[0].dimensions[2:]
    reach = zip(window.reach(volume[2:]), result, window.begins, strict=True)
    full = (max(far, size + begin) for far, size, begin in reach)
    return (TensorType("float32", (channels, *kernel, *volume[2:])), TensorType("float32", (channels, *full)))


def _bind_transposed(call: KernelArguments) -> Run:
    """Each element of a volume times the filter, added where the products lie in the result."""
    (x, weight, *bias), (out,), (products, full) = call.inputs, call.outputs, call.scratch
    window, group = Window.of(call.parameters), call.parameters["group"]
    flat = products.reshape(-1, prod(x.shape[2:]))
    steps: list[Run] = []
    for image, result in zip(x, out, strict=True):
        for part, rows, target in zip(*(_groups(array, group) for array in (image, weight, result)), strict=True):
            factor = rows.reshape(len(rows), -1).T
            steps.append(partial(np.matmul, factor, part.reshape(len(part), -1), flat))
            steps.append(bind_overlap(products, window, full, target))
    return in_sequence([*steps, *_bias(out, bias)])


def _overlap_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """One padded image."""
    pads, image = outline.parameters["pads"], outline.outputs[0].dimensions[2:]
    sizes = (size + pads[axis] + pads[axis + len(image)] for axis, size in enumerate(image))
    return (TensorType(outline.inputs[0].dtype, (outline.outputs[0].dimensions[1], *sizes)),)


def _bind_columns_to_image(call: KernelArguments) -> Run:
    (x,), (out,), (full,), window = call.inputs, call.outputs, call.scratch, Window.of(call.parameters)
    sizes = zip(full.shape[1:], window.kernel_shape, window.strides, window.dilations, strict=True)
    positions = [(size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation in sizes]
    columns = x.reshape(len(x), out.shape[1], *window.kernel_shape, *positions)
    return in_sequence([bind_overlap(part, window, full, target) for part, target in zip(columns, out, strict=True)])


KERNELS: Mapping[str, NumpyKernel] = {
    "columns_to_image": NumpyKernel(bind=_bind_columns_to_image, scratch=_overlap_scratch),
    "transposed_volume_convolution": NumpyKernel(bind=_bind_transposed, scratch=_transposed_scratch),
    "volume_convolution": NumpyKernel(bind=_bind_convolution, scratch=_convolution_scratch),
}
"""Rows of the kernel table."""
