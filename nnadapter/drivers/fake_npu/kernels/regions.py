"""Pooling of regions of images [N, C, H, W], one region after the other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Run, check_indices
from nnadapter.errors import InputValueError
from nnadapter.ir.index_ranges import farthest_corner
from nnadapter.ir.operand import Array


def _check_finite(regions: Array) -> None:
    if not np.isfinite(regions).all():
        first = int(np.flatnonzero(~np.isfinite(regions).all(axis=1))[0])
        raise InputValueError(f"region {first} is {regions[first].tolist()}; expected finite numbers")


def _check_reach(regions: Array, image: Array, parameters: Parameters) -> None:
    """Raise InputValueError if a region reaches so far that it has too many samples, one for each pixel."""
    if parameters["sampling_ratio"]:
        return
    most = farthest_corner(image.shape[2:], parameters["spatial_scale"])
    far = float(np.abs(regions).max(initial=0))
    if far > most:
        raise InputValueError(f"a region reaches to {far:g}; expected at most {most} for images of {image.shape[2:]}")


_Samples = tuple[Array, Array, Array, Array, int]
"""Along one axis: lower and upper pixel of every sample, the weights of both, and the samples of each bin."""


def _samples(start: np.float32, length: np.float32, bins: int, size: int, parameters: Parameters) -> _Samples:
    """Where samples lie along one side of a region; those too far outside the image weigh nothing."""
    step = length / np.float32(bins)
    count = parameters["sampling_ratio"] or max(0, int(np.ceil(step)))
    inner = (np.arange(count, dtype=np.float32) + np.float32(0.5)) * step / np.float32(max(count, 1))
    place = (start + np.arange(bins, dtype=np.float32)[:, None] * step + inner).reshape(-1)
    inside = (place >= -1) & (place <= size)
    place = np.clip(place, 0, size - 1)
    lower = np.floor(place).astype(np.int64)
    upper = np.minimum(lower + 1, size - 1)
    rest = (place - lower).astype(np.float32)
    return lower, upper, np.where(inside, 1 - rest, 0), np.where(inside, rest, 0), count


def _sides(region: Array, image: Array, out: Array, parameters: Parameters) -> list[_Samples]:
    """The samples along the height and the width of a region (left, top, right, bottom)."""
    half = np.float32(0.5 if parameters["half_pixel"] else 0)
    corners = region * np.float32(parameters["spatial_scale"]) - half
    lengths = corners[2:] - corners[:2]
    if not parameters["half_pixel"]:
        lengths = np.maximum(lengths, np.float32(1))
    return [
        _samples(corners[place], lengths[place], out.shape[axis], image.shape[axis], parameters)
        for place, axis in ((1, 1), (0, 2))
    ]


def _shares(samples: _Samples, bins: int, size: int) -> Array:
    """What every pixel along one axis weighs in the mean of every bin, [bins, size]."""
    lower, upper, below, above, count = samples
    shares, places = np.zeros((bins, size), np.float32), np.repeat(np.arange(bins), count)
    np.add.at(shares, (places, lower), below)
    np.add.at(shares, (places, upper), above)
    return shares / np.float32(max(count, 1))


def _average(image: Array, sides: list[_Samples], out: Array) -> None:
    """The mean of all samples of a bin: as they lie on a grid, one product along each axis."""
    rows, columns = (_shares(side, out.shape[axis], image.shape[axis]) for axis, side in ((1, sides[0]), (2, sides[1])))
    down, across = (_span(side) for side in sides)
    np.matmul(np.matmul(rows[:, down], image[:, down, across]), columns[:, across].T, out)


def _span(side: _Samples) -> slice:
    """The pixels that are read along one axis."""
    lower, upper = side[:2]
    return slice(int(lower.min()), int(upper.max()) + 1) if lower.size else slice(0, 1)


def _largest(image: Array, sides: list[_Samples], out: Array) -> None:
    """The largest of the four weighed neighbors of all samples of a bin, as ONNX has it: they are not added up."""
    (*rows, down), (*columns, across) = sides
    if not down * across:
        out[...] = 0
        return
    best = np.full((len(image), len(rows[0]), len(columns[0])), -np.inf, np.float32)
    for row in (0, 1):
        for column in (0, 1):
            weights = rows[row + 2][:, None] * columns[column + 2]
            np.maximum(best, image[:, rows[row][:, None], columns[column]] * weights, out=best)
    np.copyto(out, best.reshape(len(image), out.shape[1], down, out.shape[2], across).max(axis=(2, 4)))


_POOL = MappingProxyType({"avg": _average, "max": _largest})


def _bind_roi_align(call: KernelArguments) -> Run:
    (x, regions, numbers), (out,), parameters = call.inputs, call.outputs, call.parameters
    pool = _POOL[parameters["mode"]]

    def run() -> None:
        _check_finite(regions)
        _check_reach(regions, x, parameters)
        check_indices(numbers, len(x))
        for region, number, target in zip(regions, numbers.tolist(), out, strict=True):
            pool(x[number], _sides(region, x[number], target, parameters), target)

    return run


def _bind_max_roi_pool(call: KernelArguments) -> Run:
    (x, regions), (out,), scale = call.inputs, call.outputs, np.float32(call.parameters["spatial_scale"])

    def run() -> None:
        _check_finite(regions)
        numbers = regions[:, 0].astype(np.int64)
        check_indices(numbers, len(x))
        corners = _rounded(regions[:, 1:] * scale)
        for corner, number, target in zip(corners, numbers.tolist(), out, strict=True):
            image = x[number]
            rows = _bins(corner[1], corner[3], target.shape[1], image.shape[1])
            columns = _bins(corner[0], corner[2], target.shape[2], image.shape[2])
            largest = image[:, rows[0]].max(axis=2)[:, :, columns[0]].max(axis=3)
            np.copyto(target, np.where(rows[1][:, None] & columns[1], largest, 0))

    return run


def _rounded(places: Array) -> Array:
    """To whole numbers, halves away from zero."""
    return np.copysign(np.floor(np.abs(places) + np.float32(0.5)), places)


def _bins(first: np.float32, last: np.float32, bins: int, size: int) -> tuple[Array, Array]:
    """The pixels of every bin along one axis, [bins, most pixels], the last one repeated; and whether it has any."""
    step = np.maximum(last - first + 1, np.float32(1)) / np.float32(bins)
    numbers = np.arange(bins, dtype=np.float32)
    begins = np.clip(np.floor(numbers * step) + first, 0, size).astype(np.int64)
    ends = np.clip(np.ceil((numbers + 1) * step) + first, 0, size).astype(np.int64)
    most = max(1, int((ends - begins).max()))
    pixels = np.minimum(begins[:, None] + np.arange(most), np.maximum(ends - 1, 0)[:, None])
    return np.clip(pixels, 0, size - 1), ends > begins


KERNELS: Mapping[str, NumpyKernel] = {
    "max_roi_pool": NumpyKernel(bind=_bind_max_roi_pool),
    "roi_align": NumpyKernel(bind=_bind_roi_align),
}
"""Rows of the kernel table."""
