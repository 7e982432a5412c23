"""Kernels that read images [N, C, …] between their pixels: grids, and convolutions whose windows are bent.

What has one number per place is made anew in every run; what has one per place and channel lies in scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.interpolation import NEIGHBORS, Neighbors, reflected, weighted_sum, zero_outside
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array


def _grid_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """One neighbor of every place of one image."""
    return (TensorType("float32", (outline.inputs[0].dimensions[1], prod(outline.outputs[0].dimensions[2:]))),)


def _bind_grid_sample(call: KernelArguments) -> Run:
    (x, grid), (out,), (spare,) = call.inputs, call.outputs, call.scratch
    axes = x.ndim - 2
    parts = list(
        zip(x.reshape(*x.shape[:2], -1), grid.reshape(len(x), -1, axes), out.reshape(*out.shape[:2], -1), strict=True)
    )

    def run() -> None:
        for image, places, target in parts:
            # The grid names the last axis first.
            neighbors_by_axis = [
                (size, _grid_neighbors(places[:, axes - 1 - axis], size, call.parameters))
                for axis, size in enumerate(x.shape[2:])
            ]
            weighted_sum(image, neighbors_by_axis, target, spare)

    return run


def _grid_neighbors(grid: Array, size: int, parameters: Parameters) -> Neighbors:
    """The neighbors of places in [-1, 1] along one axis of `size` pixels."""
    padding, corners = parameters["padding_mode"], parameters["align_corners"]
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    place = (grid + 1) / 2 * (size - 1) if corners else ((grid + 1) * size - 1) / 2
    if parameters["mode"] == "nearest":
        place = np.rint(place)
    # Cubic neighbors are put back to the border one by one, as ONNX Runtime and PyTorch do it.
    if padding == "border" and parameters["mode"] != "cubic":
        place = np.clip(place, 0, size - 1)
    elif padding == "reflection":
        place = reflected(place, low, high)
    neighbors = NEIGHBORS[parameters["mode"]](place)
    if padding == "zeros":
        return zero_outside(neighbors, size)
    if padding == "reflection":
        neighbors = [(np.trunc(reflected(index, low, high)), weight) for index, weight in neighbors]
    return [(np.clip(index, 0, size - 1), weight) for index, weight in neighbors]


def _bind_affine_grid(call: KernelArguments) -> Run:
    """Every place (x, y, …, 1) of an even grid times the matrix of each image."""
    (theta,), (out,), corners = call.inputs, call.outputs, call.parameters["align_corners"]
    sizes = out.shape[1:-1]
    lines = [_even(size, corners) for size in sizes]
    places = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1).reshape(-1, len(sizes))
    homogeneous = np.concatenate([places, np.ones_like(places[:, :1])], axis=1)
    target, factor = out.reshape(len(out), -1, len(sizes)), theta.transpose(0, 2, 1)
    return lambda: np.matmul(homogeneous, factor, target)


def _even(size: int, corners: bool) -> Array:
    """So many places from -1 to 1, which are the centers of the outer pixels or their outer edges."""
    if corners:
        return np.linspace(-1, 1, size, dtype=np.float32)
    return ((np.arange(size, dtype=np.float64) * 2 + 1) / size - 1).astype(np.float32)


def _deformable_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """What one tap reads of every channel, twice, and its products for one group of outputs."""
    channels, positions = outline.inputs[0].dimensions[1], prod(outline.outputs[0].dimensions[2:])
    read = TensorType("float32", (channels, positions))
    products = TensorType("float32", (outline.outputs[0].dimensions[1] // outline.parameters["group"], positions))
    return read, read, products


def _bind_deformable(call: KernelArguments) -> Run:
    """Tap after tap: what it reads at its bent places, times its part of the filter, added up."""
    (x, weight, offset, *more), (out,), (read, spare, products) = call.inputs, call.outputs, call.scratch
    bias = more.pop(0) if call.parameters["has_bias"] else None
    taps = list(_taps(call, offset, more[0] if more else None))
    groups = call.parameters["group"]
    factors = weight.reshape(groups, -1, *weight.shape[1:])
    columns = read.reshape(groups, -1, read.shape[1])
    flat = out.reshape(len(out), groups, -1, read.shape[1])

    def run() -> None:
        out[...] = 0 if bias is None else bias.reshape(-1, 1, 1)
        for image, (row, column), places, mask in taps:
            _read(x[image], places, mask, read, spare)
            for group, factor in enumerate(factors):
                np.matmul(factor[:, :, row, column], columns[group], products)
                np.add(flat[image, group], products, flat[image, group])

    return run


_Tap = tuple[int, tuple[int, int], list[tuple[Array, Array]], Array | None]
"""Image, tap, for each axis the even places and how far each offset group bends them, and the mask."""


def _taps(call: KernelArguments, offset: Array, mask: Array | None) -> Iterator[_Tap]:
    """Everything that is read, tap by tap of image by image."""
    window, (height, width) = Window.of(call.parameters), call.outputs[0].shape[2:]
    groups, bends = (
        call.parameters["offset_group"],
        offset.reshape(len(offset), -1, *window.kernel_shape, 2, height, width),
    )
    masks = None if mask is None else mask.reshape(len(mask), groups, *window.kernel_shape, -1)
    for image in range(len(offset)):
        for row, column in window.taps():
            even = [_places(window, axis, tap, count) for axis, tap, count in ((0, row, height), (1, column, width))]
            even = [even[0][:, None], even[1][None, :]]
            places = [(line, bends[image, :, row, column, axis]) for axis, line in enumerate(even)]
            yield image, (row, column), places, None if masks is None else masks[image, :, row, column]


def _places(window: Window, axis: int, tap: int, count: int) -> Array:
    first = tap * window.dilations[axis] - window.pads[axis]
    return (np.arange(count) * window.strides[axis] + first).astype(np.float32)


def _read(image: Array, places: list[tuple[Array, Array]], mask: Array | None, read: Array, spare: Array) -> None:
    """Read an image [C, H, W] at bent places, offset group by offset group, into `read` [C, places]."""
    groups = len(places[0][1])
    pixels, targets, spares = (array.reshape(groups, len(array) // groups, -1) for array in (image, read, spare))
    for group in range(groups):
        neighbors_by_axis = [
            (size, zero_outside(NEIGHBORS["linear"]((even + bend[group]).reshape(-1)), size))
            for size, (even, bend) in zip(image.shape[1:], places, strict=True)
        ]
        weighted_sum(pixels[group], neighbors_by_axis, targets[group], spares[group])
        if mask is not None:
            np.multiply(targets[group], mask[group], targets[group])


KERNELS: Mapping[str, NumpyKernel] = {
    "affine_grid": NumpyKernel(bind=_bind_affine_grid),
    "deformable_convolution": NumpyKernel(bind=_bind_deformable, scratch=_deformable_scratch),
    "grid_sample": NumpyKernel(bind=_bind_grid_sample, scratch=_grid_scratch),
}
"""Rows of the kernel table."""
