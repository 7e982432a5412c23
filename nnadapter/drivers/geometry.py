"""Geometry of windows, resizes, slices and pads, for lowerings.

The functions depend only on types and attributes, so lowerings call them at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np

from nnadapter.ir import Array, Layout, NamedOperation, OperandType

Coordinates = Callable[[Array, np.float32, np.float32, np.float32], Array]
"""Function of output indices, input size, output size and scale, which returns input coordinates; all float32."""


def window_padding(operation: NamedOperation) -> tuple[tuple[int, int], ...]:
    """Return (before, after) padding per spatial axis that completes every window of CONV_2D, CONV_3D or a pool.

    This is `pads`, enlarged at the end if `ceil_mode` leaves the last window partly outside. Pools must ignore the
    padding:
    fill it with the smallest number for a maximum, or with 0 for a sum divided by `window_divisors`.
    """
    return tuple(
        (begin, max(end, (count - 1) * stride + (kernel - 1) * dilation + 1 - begin - size))
        for size, count, kernel, stride, dilation, begin, end in _windows(operation)
    )


def window_divisors(operation: NamedOperation) -> Array:
    """Return the divisor of each window of AVERAGE_POOL_2D or AVERAGE_POOL_3D, with one axis per spatial axis.

    Padding counts if `count_include_pad` is set; additional padding of `ceil_mode` never counts.
    """
    inside = bool(operation.count_include_pad)
    counts = [
        _tap_counts(count, kernel, stride, dilation, *((begin + size + end, 0) if inside else (size, begin)))
        for size, count, kernel, stride, dilation, begin, end in _windows(operation)
    ]
    divisors: Array = reduce(np.multiply.outer, counts).astype(operation.output.type.dtype.array_type)
    return divisors


def transposed_crop(operation: NamedOperation) -> tuple[slice, ...]:
    """Return a slice per spatial axis that crops an unpadded transposed convolution to the result.

    An unpadded axis has `stride * (size - 1) + dilation * (kernel - 1) + 1 + output_padding` elements. The crop may be
    asymmetric, unlike the pads of most libraries.
    """
    pads, sizes = operation.pads, _sizes(operation.output.type)
    return tuple(slice(begin, begin + size) for begin, size in zip(pads, sizes, strict=False))


def resize_coordinates(operation: NamedOperation, axis: int) -> Array:
    """Return the input coordinate of each element along an axis of a resized result, neither rounded nor clamped.

    Source: ONNX Resize-19, `coordinate_transformation_mode`; in float32, as ONNX Runtime computes it.
    """
    size, output_size = operation.input.type.dimensions[axis], operation.output.type.dimensions[axis]
    mode = _COORDINATES[operation.coordinate_transformation_mode]
    scale = np.float32(operation.scales[axis])
    return mode(np.arange(output_size, dtype=np.float32), np.float32(size), np.float32(output_size), scale)


def nearest_indices(operation: NamedOperation, axis: int) -> Array:
    """Return the input indices that RESIZE_NEAREST selects along an axis, int64."""
    last = operation.input.type.dimensions[axis] - 1
    places: Array = _NEAREST[operation.nearest_mode](resize_coordinates(operation, axis))
    return np.clip(places, 0, last).astype(np.int64)


def linear_indices(operation: NamedOperation, axis: int) -> tuple[Array, Array, Array]:
    """Return lower (int64), upper (int64) and weight (float32) of RESIZE_LINEAR per result element along an axis.

    An element is `x[lower] * (1 - weight) + x[upper] * weight`.
    """
    last = operation.input.type.dimensions[axis] - 1
    places = np.clip(resize_coordinates(operation, axis), 0, last)
    lower = np.floor(places).astype(np.int64)
    return lower, np.minimum(lower + 1, last), places - lower.astype(np.float32)


def resized_axes(operation: NamedOperation) -> tuple[int, ...]:
    """Return the axes that RESIZE_NEAREST or RESIZE_LINEAR changes."""
    input_sizes, output_sizes = operation.input.type.dimensions, operation.output.type.dimensions
    return tuple(
        axis for axis, scale in enumerate(operation.scales) if scale != 1 or input_sizes[axis] != output_sizes[axis]
    )


def slices(operation: NamedOperation) -> tuple[slice, ...]:
    """Return numpy's index for SLICE: a slice per axis, with steps of either sign.

    An end before the first element, stored as -(size + 1), becomes None.
    """
    axis_slices = [slice(None)] * operation.input.type.rank
    for axis, start, end, step in zip(operation.axes, operation.starts, operation.ends, operation.steps, strict=True):
        axis_slices[axis] = slice(start, None if end < 0 else end, step)
    return tuple(axis_slices)


def positive_slices(operation: NamedOperation) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return `slices` with positive steps, and the axes to reverse afterwards."""
    axis_slices, reversed_axes = list(slices(operation)), []
    for axis, size in enumerate(operation.input.type.dimensions):
        if axis_slices[axis].step is not None and axis_slices[axis].step < 0:
            indices = range(*axis_slices[axis].indices(size))
            axis_slices[axis] = slice(indices[-1], indices[0] + 1, -axis_slices[axis].step) if indices else slice(0, 0)
            reversed_axes.append(axis)
    return tuple(axis_slices), tuple(reversed_axes)


def crop_and_padding(operation: NamedOperation) -> tuple[tuple[slice, ...], tuple[tuple[int, int], ...]]:
    """Return PAD's crop, from negative pads, as a slice per axis, and its padding (before, after) per axis."""
    sizes, pads = operation.input.type.dimensions, operation.pads
    pairs = tuple(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))
    crops = tuple(slice(max(0, -begin), size - max(0, -end)) for size, (begin, end) in zip(sizes, pairs, strict=True))
    return crops, tuple((max(0, begin), max(0, end)) for begin, end in pairs)


def _sizes(type_: OperandType) -> tuple[int, ...]:
    return type_.dimensions[1:-1] if type_.layout is Layout.NHWC else type_.dimensions[2:]


def _windows(operation: NamedOperation) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Yield for every spatial axis: size, window count, kernel, stride, dilation, begin pad, end pad."""
    is_pool = "kernel_shape" in operation.attributes
    kernel: Sequence[int] = operation.kernel_shape if is_pool else operation.filter.type.dimensions[2:]
    sizes, counts, rank = _sizes(operation.input.type), _sizes(operation.output.type), len(kernel)
    begins, ends = operation.pads[:rank], operation.pads[rank:]
    return zip(sizes, counts, kernel, operation.strides, operation.dilations, begins, ends, strict=True)


def _tap_counts(count: int, kernel: int, stride: int, dilation: int, size: int, offset: int) -> Array:
    taps = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - offset
    return np.asarray(((taps >= 0) & (taps < size)).sum(1))


_HALF, _ONE = np.float32(0.5), np.float32(1)


def _align_corners(x: Array, size: np.float32, output_size: np.float32, scale: np.float32) -> Array:
    return x * (size - _ONE) / (output_size - _ONE) if output_size > 1 else np.zeros_like(x)


def _half_pixel(x: Array, size: np.float32, output_size: np.float32, scale: np.float32) -> Array:
    return (x + _HALF) / scale - _HALF


def _half_pixel_symmetric(x: Array, size: np.float32, output_size: np.float32, scale: np.float32) -> Array:
    shift = size * _HALF * (_ONE - output_size / (scale * size))
    return shift + (x + _HALF) / scale - _HALF


_COORDINATES: Mapping[str, Coordinates] = {
    "asymmetric": lambda x, size, output_size, scale: x / scale,
    "align_corners": _align_corners,
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda x, *more: _half_pixel(x, *more) if len(x) > 1 else np.zeros_like(x),
    "half_pixel_symmetric": _half_pixel_symmetric,
}
_NEAREST: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: np.floor(x + _HALF),
}
