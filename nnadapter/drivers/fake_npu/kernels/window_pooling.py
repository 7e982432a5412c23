"""Pooling over any number of spatial axes of [N, C, …], axis by axis, one pass per tap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import (
    KernelArguments,
    NumpyKernel,
    Outline,
    Run,
    check_indices,
    in_sequence,
)
from nnadapter.drivers.fake_npu.kernels.windows import Window, bind_padding
from nnadapter.ir.operand import Array

Combine = Callable[..., object]
"""A function of two variables, called as `combine(x, y, out=out)`."""


def _lowest(values: Array) -> float:
    return -np.inf if values.dtype.kind == "f" else int(np.iinfo(values.dtype).min)


def _stages(padded: tuple[int, ...], result: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Dimensions after each spatial axis has been pooled."""
    return [(*result[: axis + 1], *padded[axis + 1 :]) for axis in range(2, len(result))]


def _scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The padded copy, then the result of every axis but the last."""
    window, dtype, result = Window.of(outline.parameters), outline.inputs[0].dtype, outline.outputs[0].dimensions
    padded = (*outline.inputs[0].dimensions[:2], *window.reach(result[2:]))
    return tuple(TensorType(dtype, dimensions) for dimensions in (padded, *_stages(padded, result)[:-1]))


def _bind_axes(call: KernelArguments, combine: Combine) -> list[Run]:
    """Bind `out = ` all elements of each window, combined, out of the padded copy."""
    (source, *stages), (out, *_), window = call.scratch, call.outputs, Window.of(call.parameters)
    steps: list[Run] = []
    for axis, target in enumerate((*stages, out)):
        count = target.shape[axis + 2]
        parts = [
            source[(slice(None),) * (axis + 2) + (window.along(axis, tap, count),)]
            for tap in range(window.kernel_shape[axis])
        ]
        steps.append(partial(_reduce, parts, combine, target))
        source = target
    return steps


def _reduce(parts: Sequence[Array], combine: Combine, out: Array) -> None:
    np.copyto(out, parts[0])
    for part in parts[1:]:
        combine(out, part, out=out)


def _bind_max(call: KernelArguments) -> Run:
    x, window = call.inputs[0], Window.of(call.parameters)
    return in_sequence([bind_padding(x, call.scratch[0], window.begins, _lowest(x)), *_bind_axes(call, np.maximum)])


def _bind_average(call: KernelArguments) -> Run:
    (x,), (out,), window = call.inputs, call.outputs, Window.of(call.parameters)
    share = window.shares(x.shape[2:], out.shape[2:], include_pad=bool(call.parameters["count_include_pad"]))
    padding = bind_padding(x, call.scratch[0], window.begins, 0)
    return in_sequence([padding, *_bind_axes(call, np.add), partial(np.multiply, out, share, out)])


def _bind_norm(call: KernelArguments) -> Run:
    """The p-th root of the sum of absolute values to the power of p."""
    (x,), (out,), padded, p = call.inputs, call.outputs, call.scratch[0], call.parameters["p"]
    padding = bind_padding(x, padded, Window.of(call.parameters).begins, 0)
    before: list[Run] = [partial(np.absolute, padded, padded)]
    after: list[Run] = []
    if p == 2:
        before, after = [partial(np.multiply, padded, padded, padded)], [partial(np.sqrt, out, out)]
    elif p > 2:
        before.append(partial(np.power, padded, np.float32(p), padded))
        after.append(partial(np.power, out, np.float32(1 / p), out))
    return in_sequence([padding, *before, *_bind_axes(call, np.add), *after])


def _indices_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Whether an element is larger than all before it, then the padded copy if there is one."""
    window, image, result = Window.of(outline.parameters), outline.inputs[0], outline.outputs[0].dimensions
    larger = TensorType("bool", result)
    if not window.needs_copy(image.dimensions[2:], result[2:]):
        return (larger,)
    return larger, TensorType(image.dtype, (*image.dimensions[:2], *window.reach(result[2:])))


def _bind_max_with_indices(call: KernelArguments) -> Run:
    """Tap after tap; of equal elements the first is kept, padding never: it may equal the smallest elements."""
    (x,), (out, indices), (larger, *copy) = call.inputs, call.outputs, call.scratch
    window = Window.of(call.parameters)
    padded = copy[0] if copy else x
    steps = [bind_padding(x, padded, window.begins, _lowest(x))] if copy else []
    places = _places(x.shape[2:], padded.shape[2:], window.begins, call.parameters["storage_order"])
    planes = np.arange(x.shape[0] * x.shape[1]) * prod(x.shape[2:])
    offset = planes.reshape((*x.shape[:2], *(1,) * (x.ndim - 2)))
    (values, numbers, seen), *taps = _taps(
        window, padded, places, _inside(x.shape[2:], padded.shape[2:], window.begins), out
    )
    steps.append(partial(np.copyto, out, values))
    if not taps:  # each window is one element
        return in_sequence([*steps, partial(np.add, numbers, offset, indices)])
    steps.append(partial(np.copyto, indices, numbers))
    for values, numbers, inside in taps:
        first = inside & ~seen
        seen = seen | inside
        steps.append(partial(np.greater, values, out, out=larger))
        if first.any():
            steps.append(partial(np.logical_or, larger, first, out=larger))
        steps.append(partial(np.copyto, out, values, where=larger))
        steps.append(partial(np.copyto, indices, numbers, where=larger))
    return in_sequence([*steps, partial(np.add, indices, offset, indices)])


def _taps(window: Window, padded: Array, places: Array, inside: Array, out: Array) -> list[tuple[Array, Array, Array]]:
    """For every tap what it reads, [N, C, …], the numbers of these elements, and whether they lie in the image."""
    taps = []
    for tap in window.taps():
        where = tuple(window.along(axis, step, out.shape[axis + 2]) for axis, step in enumerate(tap))
        taps.append((padded[(slice(None), slice(None), *where)], np.ascontiguousarray(places[where]), inside[where]))
    return taps


def _inside(image: Sequence[int], padded: Sequence[int], begins: Sequence[int]) -> Array:
    """Whether an element of the padded image is one of the image."""
    inside = np.zeros(tuple(padded), np.bool_)
    inside[tuple(slice(begin, begin + size) for begin, size in zip(begins, image, strict=True))] = True
    return inside


def _places(image: Sequence[int], padded: Sequence[int], begins: Sequence[int], order: str) -> Array:
    """The number of every padded element within its plane; what lies outside has that of its nearest neighbor."""
    numbers = np.arange(prod(image)).reshape(image, order="C" if order == "row_major" else "F")
    axes = zip(image, padded, begins, strict=True)
    return numbers[np.ix_(*(np.clip(np.arange(far) - begin, 0, size - 1) for size, far, begin in axes))]


def _bind_unpool(call: KernelArguments) -> Run:
    (x, indices), (out,) = call.inputs, call.outputs
    values, places, target = x.reshape(-1), indices.reshape(-1), out.reshape(-1)

    def run() -> None:
        check_indices(places, target.size)
        target[...] = 0
        target[places] = values

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "average_pool_axes": NumpyKernel(bind=_bind_average, scratch=_scratch),
    "max_pool_axes": NumpyKernel(bind=_bind_max, scratch=_scratch),
    "max_pool_with_indices": NumpyKernel(bind=_bind_max_with_indices, scratch=_indices_scratch),
    "max_unpool": NumpyKernel(bind=_bind_unpool),
    "p_norm_pool": NumpyKernel(bind=_bind_norm, scratch=_scratch),
}
"""Rows of the kernel table."""
