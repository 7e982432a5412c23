"""Matrix products with fused bias and activation, linear algebra, and convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.kernels.kernel import BLOCK_ELEMENTS, Finish, NumpyKernel, blocks, named_kernels
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.deferred_arrays import unpacked_weight
from nnadapter.ir.operand import Array


def finish_rows(rows: Array, bias: Array | None, finish: Finish | None) -> None:
    """Add bias [N] and apply the activation to contiguous rows [M, N], in place."""
    if bias is not None:
        np.add(rows, bias, rows)
    if finish is not None:
        finish(rows)


def fully_connected(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None
) -> None:
    """Multiply x [..., K] by the transpose of weight [N, K], and add bias [N]."""
    outputs, depth = weight.shape
    np.matmul(x.reshape(-1, depth), weight.T, out.reshape(-1, outputs))
    finish_rows(out, bias, finish)


def matmul(
    out: Array, x: Array, y: Array, *, transpose_x: bool, transpose_y: bool, finish: Finish | None = None
) -> None:
    """Multiply stacks of matrices, transposed if requested."""
    if transpose_x:
        x = _transposed(x)
    elif y.ndim == 2 and x.ndim > 2:
        # one product instead of one per matrix
        x = x.reshape(-1, x.shape[-1])
        out = out.reshape(len(x), -1)
    if transpose_y:
        y = _transposed(y)
    np.matmul(x, y, out)
    if finish is not None:
        finish(out)


def _transposed(matrices: Array) -> Array:
    return matrices if matrices.ndim < 2 else matrices.swapaxes(-1, -2)


def einsum(out: Array, *factors: Array, equation: str) -> None:
    """Evaluate an einsum equation."""
    path = False if len(factors) == 1 else "optimal" if len(factors) <= 4 else "greedy"
    np.einsum(equation, *factors, out=out, optimize=path)


def _unpack_weight(out: Array, weight: Array, scale: Array, zero_point: Array | None = None, **parameters: Any) -> None:
    np.copyto(out, unpacked_weight(weight, scale, zero_point, **parameters))


_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 192
"""Minimum rows per block, because BLAS packs the filter for every block."""
_RUN_ELEMENTS = 1536


def pack_filter(weight: Array, *, group: int) -> Array:
    """Pack [O, C / group, taps…] as [group, taps * C / group, O / group], contiguous."""
    grouped = weight.reshape(group, -1, *weight.shape[1:])
    packed = np.ascontiguousarray(np.moveaxis(grouped, (1, 2), (-1, -2)))
    return packed.reshape(group, -1, packed.shape[-1])


def pack_transposed_filter(weight: Array, *, group: int) -> Array:
    """Pack [C, O / group, taps…] as [group, C / group, taps * O / group], contiguous."""
    grouped = weight.reshape(group, -1, *weight.shape[1:])
    return np.ascontiguousarray(np.moveaxis(grouped, 2, -1)).reshape(*grouped.shape[:2], -1)


def pack_depthwise_filter(weight: Array) -> Array:
    """Pack [C, 1, kH, kW] as [kH * kW, C], contiguous."""
    return np.ascontiguousarray(weight.reshape(len(weight), -1).T)


def pointwise_convolution(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None, **geometry: Any
) -> None:
    """Multiply the channels of every pixel by a matrix."""
    np.matmul(x.reshape(-1, x.shape[-1]), weight[0], out.reshape(-1, out.shape[-1]))
    finish_rows(out, bias, finish)


def convolution(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None, **geometry: Any
) -> None:
    """Convolve [N, spatial…, C] with a packed filter."""
    window, positions = Window(**geometry), out.shape[1:-1]
    groups, depth, outputs = weight.shape
    channels = x.shape[-1] // groups
    windows = window.views(window.pad(x, 1, positions), positions)
    pixels = max(_BLOCK_ROWS, _BLOCK_BYTES // (depth * out.itemsize))
    for images, result in zip(windows, out, strict=True):
        for rows in blocks(len(result), max(1, pixels // prod(positions[1:]))):
            target = result[rows].reshape(-1, groups * outputs)
            for group in range(groups):
                columns = images[rows, ..., group * channels : (group + 1) * channels].reshape(-1, depth)
                np.matmul(columns, weight[group], target[:, group * outputs : (group + 1) * outputs])
            finish_rows(target, bias, finish)


def depthwise_convolution(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None, **geometry: Any
) -> None:
    """Convolve every channel of [N, H, W, C] with its own filter."""
    window, (count, height, width, channels) = Window(**geometry), out.shape
    # At horizontal stride 1, adjacent pixels merge for a longer inner loop.
    most = max(1, _RUN_ELEMENTS // channels) if window.strides[1] == 1 else 1
    pixels = next(size for size in range(min(most, width), 0, -1) if width % size == 0)
    windows = window.views(window.pad(x, 1, (height, width)), (height, width))[:, :, ::pixels]
    windows = as_strided(windows, (*windows.shape[:-1], pixels * channels), windows.strides, writeable=False)
    taps = np.tile(weight, (1, pixels)).reshape(*window.kernel_shape, -1)
    result = out.reshape(count, height, width // pixels, -1)
    for image in range(count):
        for rows in blocks(height, max(1, 2 * BLOCK_ELEMENTS // (width * channels))):
            target = result[image, rows]
            np.einsum("hwijc,ijc->hwc", windows[image, rows], taps, out=target)
            finish_rows(target.reshape(-1, channels), bias, finish)


def transposed_convolution(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None, **geometry: Any
) -> None:
    """Multiply each pixel of [N, spatial…, C] by a packed filter, and add the product to the pixel's window."""
    window = Window(**geometry)
    groups, channels, columns = weight.shape
    outputs, height = out.shape[-1] // groups, x.shape[1]
    reach = zip(window.reach(x.shape[1:-1]), out.shape[1:-1], window.begins, strict=True)
    full = np.zeros((1, *(max(far, size + begin) for far, size, begin in reach), out.shape[-1]), out.dtype)
    inside: Any = [slice(begin, begin + size) for begin, size in zip(window.begins, out.shape[1:-1], strict=True)]
    rows_at_once = max(1, _BLOCK_BYTES // (columns * out.itemsize * prod(x.shape[2:-1])))
    for image, result in zip(x, out, strict=True):
        full[...] = 0
        for rows in blocks(height, rows_at_once):
            for group in range(groups):
                pixels = image[rows, ..., group * channels : (group + 1) * channels]
                products = np.matmul(pixels.reshape(-1, channels), weight[group])
                windows = products.reshape(1, *pixels.shape[:-1], *window.kernel_shape, outputs)
                window.add_windows(full[..., group * outputs : (group + 1) * outputs], windows, rows.start)
        np.copyto(result, full[(0, *inside)])
        finish_rows(result.reshape(-1, out.shape[-1]), bias, finish)


def _volumes(out: Array, *, transposed: bool, group: int, bias: Array | None = None, **parameters: Any) -> None:
    x, weight, result = (_channels_last(parameters.pop("input")), parameters.pop("filter"), _channels_last(out))
    pack, convolve = (pack_transposed_filter, transposed_convolution) if transposed else (pack_filter, convolution)
    convolve(result, x, pack(weight, group=group), bias, kernel_shape=weight.shape[2:], **parameters)
    np.copyto(out, np.moveaxis(result, -1, 1))


def _channels_last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def columns_to_image(out: Array, x: Array, **geometry: Any) -> None:
    """Add the windows in columns [N, C * taps, positions] to images [N, C, …]."""
    window, image = Window(**geometry), out.shape[2:]
    full_sizes = [size + window.pads[axis] + window.pads[axis + window.rank] for axis, size in enumerate(image)]
    sizes = zip(full_sizes, window.kernel_shape, window.strides, window.dilations, strict=True)
    positions = [(size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation in sizes]
    blocks_by_tap = x.reshape(len(x), out.shape[1], *window.kernel_shape, *positions)
    windows = np.moveaxis(blocks_by_tap, range(2 + window.rank, 2 + 2 * window.rank), range(1, 1 + window.rank))
    full = np.zeros((len(x), *full_sizes, out.shape[1]), out.dtype)
    window.add_windows(full, np.moveaxis(windows, 1 + window.rank, -1))
    inside = (slice(begin, begin + size) for begin, size in zip(window.begins, image, strict=True))
    np.copyto(out, np.moveaxis(full[(slice(None), *inside)], -1, 1))


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(einsum, _unpack_weight),
    **named_kernels(fully_connected, matmul, fuses=True),
    "determinant": NumpyKernel(lambda out, x: np.copyto(out, np.linalg.det(x))),
    "triangle": NumpyKernel(lambda out, x, upper, k: np.copyto(out, np.triu(x, k) if upper else np.tril(x, k)), (0,)),
    **named_kernels(columns_to_image),
    **named_kernels(convolution, depthwise_convolution, pointwise_convolution, transposed_convolution, fuses=True),
    "transposed_volume_convolution": NumpyKernel(partial(_volumes, transposed=True)),
    "volume_convolution": NumpyKernel(partial(_volumes, transposed=False)),
}
