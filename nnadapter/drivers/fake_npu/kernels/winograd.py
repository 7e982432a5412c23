"""Convolution with a 3 by 3 filter in 16 products where the definition takes 36: F(2 x 2, 3 x 3).

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, section 4.1. The image is cut into
tiles of 2 by 2 outputs, which read 4 by 4 pixels. Filter and pixels are transformed, multiplied as 16 matrix products
over channels, and transformed back; the transforms are additions.

An output is made of the pixels of its own window alone, as by the definition, but rounds otherwise: by what the largest
pixel and the largest weight of the window are, not by their products. A weight of 0 does not hide a huge pixel, and of
infinities most become NaN. On usual data the error is 1.0 to 1.3 times that of the definition.

Images are [N, H, W, C]. The filter [O, C, 3, 3] is packed at compile time as [16, C, O].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import blocks, even_blocks
from nnadapter.drivers.fake_npu.kernels.copying import bind_padded_copy
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.matrix import bind_epilogue
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

WINOGRAD = "winograd_convolution"
"""The kernel's name."""

FILTER_TRANSFORM = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""What a filter's rows, and then its columns, are multiplied by."""
_BLOCK_TILES = 256
"""Tiles of one block: rows of each matrix product. Fewer make the products slow, more fall out of cache."""
_LEAST_CHANNELS = 32
"""Of channels read and made: one number times the other over their sum."""
_LEAST_TILES = 24
_LEAST_PRODUCTS = 1_200_000
"""Tiles times channels read times channels made. Below these, additions cost more than products save (measured)."""
_LEAST_OUTPUTS = 3
"""Of the four of a tile, on average, that lie in the image."""


def pack_winograd_filter(weight: Array) -> Array:
    """[O, C, 3, 3] -> [16, C, O], transformed; computed in float64 and rounded once."""
    transformed = np.einsum("ik,jl,ockl->ijco", FILTER_TRANSFORM, FILTER_TRANSFORM, weight, optimize=True)
    return np.ascontiguousarray(transformed.reshape(16, weight.shape[1], weight.shape[0]), weight.dtype)


def suits_winograd(window: Window, weight: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether a convolution in one group can be computed so, and gains by it.

    Args:
        window: the filter's geometry.
        weight: dimensions of the filter, [O, C, kH, kW].
        result: dimensions of the output, [N, H, W, O].
    """
    if (window.kernel_shape, window.strides, window.dilations) != ((3, 3), (1, 1), (1, 1)):
        return False
    outputs, channels = weight[:2]
    if outputs * channels < _LEAST_CHANNELS * (outputs + channels):
        return False
    images, height, width = result[:3]
    tiles = images * ((height + 1) // 2) * ((width + 1) // 2)
    if tiles < max(_LEAST_TILES, _LEAST_PRODUCTS // (outputs * channels)):
        return False
    return images * height * width >= _LEAST_OUTPUTS * tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Tiles that are computed together: some images, some rows of tiles, every column of tiles."""

    images: slice
    rows: slice
    columns: int

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Images, rows and columns of tiles."""
        return self.images.stop - self.images.start, self.rows.stop - self.rows.start, self.columns

    @property
    def patch(self) -> tuple[int, int, int]:
        """Images, rows and columns of pixels that the tiles read."""
        images, rows, columns = self.tiles
        return images, 2 * rows + 2, 2 * columns + 2


def _tile_blocks(result: tuple[int, ...]) -> Iterator[_Block]:
    """Cut the tiles of outputs [N, H, W, O] into blocks of whole rows, or of whole images where these are small."""
    images, height, width = result[0], -(-result[1] // 2), -(-result[2] // 2)
    images_at_once = max(1, _BLOCK_TILES // (height * width))
    rows_at_once = height if images_at_once > 1 else max(1, _BLOCK_TILES // width)
    for some in blocks(images, images_at_once):
        for rows in even_blocks(height, rows_at_once):
            yield _Block(images=some, rows=rows, columns=width)


def _scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The pixels of one block; these transformed; then half transformed pixels, and products, one after the other."""
    channels, depth = outline.inputs[0].dimensions[3], outline.outputs[0].dimensions[3]
    tile_blocks = [*_tile_blocks(outline.outputs[0].dimensions)]
    patch = max(prod(block.patch) * channels for block in tile_blocks)
    transformed = max(16 * prod(block.tiles) * channels for block in tile_blocks)
    shared = max(max(_half(block, channels), 16 * prod(block.tiles) * depth) for block in tile_blocks)
    return tuple(TensorType("float32", (size,)) for size in (patch, transformed, shared))


def _half(block: _Block, channels: int) -> int:
    """Elements of pixels transformed along rows only."""
    images, rows, _ = block.tiles
    return 4 * images * rows * block.patch[2] * channels


def _bind_winograd(call: KernelArguments) -> Run:
    (image, weight, *bias), (out,), window = call.inputs, call.outputs, Window.of(call.parameters)
    patch, transformed, shared = call.scratch
    channels, depth = weight.shape[1:]
    steps: list[Run] = []
    for block in _tile_blocks(out.shape):
        pixels = _first(patch, (*block.patch, channels))
        half = _first(shared, (4, *block.tiles[:2], block.patch[2], channels))
        tiles = _first(transformed, (16, prod(block.tiles), channels))
        products = _first(shared, (16, prod(block.tiles), depth))
        target = out[block.images, 2 * block.rows.start : 2 * block.rows.stop]
        steps += [
            _bind_pixels(image[block.images], window, block.rows.start, pixels),
            *_bind_input_transform(pixels, half, tiles.reshape(4, 4, *block.tiles, channels)),
            partial(np.matmul, tiles, weight, products),
            # Of the 16 products, the one at (1, 1) is added once to each of the four outputs of a tile.
            *(bind_epilogue(products[5], bias[0], None) if bias else ()),
            *_bind_output_transform(products.reshape(4, 4, *block.tiles, depth), target),
            *bind_epilogue(target, None, call.finish),
        ]
    return in_sequence(steps)


def _first(memory: Array, dimensions: tuple[int, ...]) -> Array:
    """The first elements of a flat array."""
    return memory[: prod(dimensions)].reshape(dimensions)


def _bind_pixels(image: Array, window: Window, first_row: int, pixels: Array) -> Run:
    """Copy what tiles from row `first_row` of tiles on read; what lies outside the image is zero."""
    top = window.pads[0] - 2 * first_row
    start = max(0, -top)
    inside = window._replace(pads=(max(0, top), *window.pads[1:]))
    return bind_padded_copy(image[:, start:], pixels[:, :, np.newaxis], inside, 0.0)


def _bind_input_transform(pixels: Array, half: Array, tiles: Array) -> list[Run]:
    """Along rows, [N, H, W, C] -> [4, N, rows, W, C], then along columns -> [4, 4, N, rows, columns, C]."""
    rows, columns = tiles.shape[3:5]
    return [
        *_bind_differences([pixels[:, tap : tap + 2 * rows : 2][:, :rows] for tap in range(4)], [*half]),
        *_bind_differences(
            [half[:, :, :, tap : tap + 2 * columns : 2][:, :, :, :columns] for tap in range(4)],
            [tiles[:, column] for column in range(4)],
        ),
    ]


def _bind_differences(taps: list[Array], results: list[Array]) -> list[Run]:
    return [
        partial(np.subtract, taps[0], taps[2], results[0]),
        partial(np.add, taps[1], taps[2], results[1]),
        partial(np.subtract, taps[2], taps[1], results[2]),
        partial(np.subtract, taps[1], taps[3], results[3]),
    ]


def _bind_output_transform(products: Array, out: Array) -> list[Run]:
    """Along rows, in place, into the first two of four; then along columns into every other pixel of `out`."""
    steps: list[Run] = [
        partial(np.add, products[0], products[1], products[0]),
        partial(np.add, products[0], products[2], products[0]),
        partial(np.subtract, products[1], products[2], products[1]),
        partial(np.subtract, products[1], products[3], products[1]),
    ]
    first, second, third, fourth = (products[:2, column] for column in range(4))
    steps += [partial(np.add, first, second, first), partial(np.subtract, second, third, second)]
    for row in range(2):
        for column, (add, term, other) in enumerate(((np.add, first, third), (np.subtract, second, fourth))):
            target = out[:, row::2, column::2]
            there = slice(0, target.shape[1]), slice(0, target.shape[2])
            steps.append(partial(add, term[row][:, *there], other[row][:, *there], target))
    return steps


KERNELS: Mapping[str, NumpyKernel] = {WINOGRAD: NumpyKernel(bind=_bind_winograd, scratch=_scratch, fuses=True)}
"""Rows of the kernel table."""
