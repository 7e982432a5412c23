"""Resizing, axis by axis: nearest neighbors by copying, linear by weighing two neighbors.

Source: ONNX Resize, whose formulas map a place in the result back to one in the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.copying import bind_copy
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.ir.operand import Array

CoordinateRule = Callable[[Array, np.float32, int, int], Array]
"""Places in the result, scale, sizes of input and result -> places in the input."""


def _half_pixel(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return (place + np.float32(0.5)) / scale - np.float32(0.5)


def _half_pixel_symmetric(place: Array, scale: np.float32, size: int, result: int) -> Array:
    # The result's size was rounded down from size * scale; what that lost is shared between both ends.
    adjustment = np.float32(result) / (scale * np.float32(size))
    offset = np.float32(size) / np.float32(2) * (np.float32(1) - adjustment)
    # In this order, as in ONNX's formula: where places are whole numbers, another one rounds some below them.
    return offset + (place + np.float32(0.5)) / scale - np.float32(0.5)


def _pytorch_half_pixel(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return _half_pixel(place, scale, size, result) if result > 1 else np.zeros_like(place)


def _align_corners(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return place * np.float32(size - 1) / np.float32(result - 1) if result > 1 else np.zeros_like(place)


def _asymmetric(place: Array, scale: np.float32, size: int, result: int) -> Array:
    return place / scale


COORDINATES: Mapping[str, CoordinateRule] = {
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
}
"""By ONNX's coordinate_transformation_mode."""

_ALMOST = 1e-6
ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    # Half is compared, not added, since 3.4999998 + 0.5 is 4 in float32. What is a bit short of half counts as half
    # where half goes up: so does ONNX Runtime.
    "round_prefer_ceil": lambda place: np.floor(place) + (place - np.floor(place) >= 0.5 - _ALMOST),
    "round_prefer_floor": lambda place: np.floor(place) + (place - np.floor(place) > 0.5),
}
"""By ONNX's nearest_mode."""


def _places(axis: int, size: int, result: int, parameters: Parameters) -> Array:
    """For every index of the result along one axis, the place in the input, float32.

    Computed in float32 as ONNX Runtime does: which pixel is nearest hangs on the last bit of `1 / 0.33333334`.
    """
    rule = COORDINATES[parameters["coordinate_transformation_mode"]]
    scale = np.float32(parameters["scales"][axis])
    return rule(np.arange(result, dtype=np.float32), scale, size, result).astype(np.float32)


def _neighbors(axis: int, size: int, result: int, parameters: Parameters) -> Array:
    places = _places(axis, size, result, parameters)
    return np.clip(ROUNDINGS[parameters["nearest_mode"]](places), 0, size - 1).astype(np.intp)


def _resized_axes(x: Sequence[int], out: Sequence[int], parameters: Parameters) -> list[int]:
    """The axes that are not left as they are, those that shrink most first, so that later steps have less to do."""
    scales = parameters["scales"]
    resized = [axis for axis, size in enumerate(x) if size != out[axis] or scales[axis] != 1]
    return sorted(resized, key=lambda axis: out[axis] / x[axis])


def _stages(x: tuple[int, ...], out: tuple[int, ...], parameters: Parameters) -> list[tuple[int, ...]]:
    """Dimensions after each axis has been resized; the last are those of the result."""
    dimensions, stages = list(x), []
    for axis in _resized_axes(x, out, parameters):
        dimensions[axis] = out[axis]
        stages.append(tuple(dimensions))
    return stages


def _is_whole_factor(neighbors: Array, size: int) -> bool:
    """Whether every input index is repeated equally often, in order."""
    factor, rest = divmod(neighbors.size, size)
    return rest == 0 and bool(np.array_equal(neighbors, np.repeat(np.arange(size), factor)))


def _bind_nearest(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    axes = _resized_axes(x.shape, out.shape, call.parameters)
    neighbors = {axis: _neighbors(axis, x.shape[axis], out.shape[axis], call.parameters) for axis in axes}
    if all(_is_whole_factor(neighbors[axis], x.shape[axis]) for axis in axes):
        return _bind_repeats(x, out)
    steps = []
    for axis, target in zip(axes, (*call.scratch, out), strict=True):
        steps.append(_bind_take(x, neighbors[axis], axis, target))
        x = target
    return in_sequence(steps)


def _bind_repeats(x: Array, out: Array) -> Run:
    """Seen as [d0, factor0, d1, factor1, …], the result is one broadcast."""
    pairs = [number for size, result in zip(x.shape, out.shape, strict=True) for number in (size, result // size)]
    source = np.broadcast_to(x.reshape([number for size in x.shape for number in (size, 1)]), pairs)
    return bind_copy(source, out.reshape(pairs))


def _bind_take(x: Array, indices: Array, axis: int, out: Array) -> Run:
    return lambda: np.take(x, indices, axis=axis, out=out, mode="clip")


def _nearest_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The result of every axis but the last to be resized."""
    stages = _stages(outline.inputs[0].dimensions, outline.outputs[0].dimensions, outline.parameters)
    return tuple(TensorType(outline.inputs[0].dtype, dimensions) for dimensions in stages[:-1])


def _linear_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The result of every axis but the last to be resized; then the upper neighbors, as large as the largest."""
    stages = _stages(outline.inputs[0].dimensions, outline.outputs[0].dimensions, outline.parameters)
    kept = [TensorType(outline.inputs[0].dtype, dimensions) for dimensions in stages]
    if not kept:
        return ()
    return (*kept[:-1], TensorType(outline.inputs[0].dtype, (max(stage.size for stage in kept),)))


def _bind_linear(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    axes = _resized_axes(x.shape, out.shape, call.parameters)
    if not axes:
        return lambda: np.copyto(out, x)
    *stages, spare = call.scratch
    steps = []
    for axis, target in zip(axes, (*stages, out), strict=True):
        upper = spare[: target.size].reshape(target.shape)
        places = _places(axis, x.shape[axis], target.shape[axis], call.parameters)
        steps.append(_bind_interpolation(x, places, axis, upper, target))
        x = target
    return in_sequence(steps)


def _bind_interpolation(x: Array, places: Array, axis: int, upper: Array, out: Array) -> Run:
    """Weigh two neighbors, lower + (upper - lower) * weight along one axis; places outside take the edge."""
    size = x.shape[axis]
    inside = np.clip(places, 0, size - 1)
    below = np.minimum(np.floor(inside).astype(np.intp), max(size - 2, 0))
    above = np.minimum(below + 1, size - 1)
    weight = (inside - below).astype(out.dtype).reshape((-1,) + (1,) * (x.ndim - axis - 1))

    def run() -> None:
        np.take(x, below, axis=axis, out=out, mode="clip")
        np.take(x, above, axis=axis, out=upper, mode="clip")
        np.subtract(upper, out, upper)
        np.multiply(upper, weight, upper)
        np.add(out, upper, out)

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "resize_linear": NumpyKernel(bind=_bind_linear, scratch=_linear_scratch),
    "resize_nearest": NumpyKernel(bind=_bind_nearest, scratch=_nearest_scratch),
}
"""Rows of the kernel table."""
