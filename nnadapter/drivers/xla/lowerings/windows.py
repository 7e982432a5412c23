"""Convolutions and pools over windows of any rank."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.geometry import window_divisors, window_padding
from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.elementwise import FUSED
from nnadapter.drivers.xla.lowerings.numerics import (
    ALL_FLOATS,
    ALL_NUMBERS,
    COMPUTED,
    LAYOUTS,
    Function,
    channels_second,
    computes,
    direct,
    moves,
    widened,
)
from nnadapter.drivers.xla.lowerings.reductions import smallest
from nnadapter.ir import Array, Layout, NamedOperation
from nnadapter.ir.definition.normalization import per_channel

_AXES = {2: "HW", 3: "DHW"}
_MOST_TAPS = 49
"""Number of filter elements above which XLA's convolution is used, because the code grows with each element."""


def with_bias(result: Any, bias: Any, last: bool) -> Any:
    """Add a bias along the last axis if `last`, otherwise along the second."""
    if bias is None:
        return result
    return result + (bias if last else per_channel(bias, result.ndim))


def _pairs(pads: Any) -> list[tuple[int, int]]:
    rank = len(pads) // 2
    return list(zip(pads[:rank], pads[rank:], strict=True))


def convolution(last: bool, is_packed: bool) -> Function:
    """Return a convolution, with channels last if `last`, and with a filter from `pack_filter` if `is_packed`."""

    def function(x: Any, weights: Any, bias: Any = None, *, strides: Any, pads: Any, dilations: Any, group: int) -> Any:
        channel, kernel = (-1 if last else 1), weights.shape[:-2] if is_packed else weights.shape[2:]
        if group == x.shape[channel] == weights.shape[-1 if is_packed else 0] and prod(kernel) <= _MOST_TAPS:
            taps = weights if is_packed else jnp.moveaxis(weights, (1, 0), (-2, -1))
            return with_bias(_depthwise(x, taps, last, strides, _pairs(pads), dilations), bias, last)
        axes = _AXES[x.ndim - 2]
        picture = f"N{axes}C" if last else f"NC{axes}"
        result = jax.lax.conv_general_dilated(
            x,
            weights,
            window_strides=strides,
            padding=_pairs(pads),
            rhs_dilation=dilations,
            dimension_numbers=(picture, f"{axes}IO" if is_packed else f"OI{axes}", picture),
            feature_group_count=group,
        )
        return with_bias(result, bias, last)

    return function


def _depthwise(x: Any, taps: Any, last: bool, strides: Any, pads: Any, dilations: Any) -> Any:
    """Convolve each channel by summing shifted images times weights, which is faster than XLA's loop."""
    first, kernel = (1 if last else 2), taps.shape[:-2]
    widths = [(0, 0)] * first + pads + [(0, 0)] * (x.ndim - first - len(pads))
    padded = jnp.pad(x, widths)
    spans = [dilation * (size - 1) for size, dilation in zip(kernel, dilations, strict=True)]
    axes = tuple(range(first, first + len(kernel)))
    total = None
    for place in np.ndindex(kernel):
        windows = [slice(None)] * x.ndim
        for axis, at, dilation, span, stride in zip(axes, place, dilations, spans, strides, strict=True):
            windows[axis] = slice(at * dilation, padded.shape[axis] - span + at * dilation, stride)
        weight = taps[place][0]
        moved = padded[tuple(windows)] * (weight if last else per_channel(weight, x.ndim))
        total = moved if total is None else total + moved
    return total


def pack_filter(weights: Array) -> Array:
    """Transpose a filter [O, I, H, W] to [H, W, I, O], XLA's order on CPUs."""
    return np.ascontiguousarray(np.moveaxis(weights, (1, 0), (-2, -1)))


def _with_filter(operation: NamedOperation, *, last: bool) -> Computes:
    is_packed = operation.filter.value is not None
    return computes(operation, convolution(last, is_packed), pack_filter if is_packed else None)


@lowers("CONV_2D", types=(*ALL_FLOATS, *COMPUTED), fuse_codes=FUSED, layouts=LAYOUTS, quantized=True)
def lower_convolution(operation: NamedOperation) -> Computes:
    """Lower CONV_2D."""
    return _with_filter(operation, last=operation.input.type.layout is Layout.NHWC)


@lowers("CONV_3D", types=ALL_FLOATS)
def lower_volume_convolution(operation: NamedOperation) -> Computes:
    """Lower CONV_3D."""
    return _with_filter(operation, last=False)


def _transposed_convolution(
    x: Any,
    weights: Any,
    bias: Any = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    output_padding: Any,
) -> Any:
    kernel, axes = weights.shape[2:], _AXES[x.ndim - 2]
    by_group = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:])
    filters = jnp.swapaxes(by_group, 1, 2).reshape(-1, weights.shape[0] // group, *kernel)
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    around = [
        (far - begin, far - end + more)
        for far, (begin, end), more in zip(reach, _pairs(pads), output_padding, strict=True)
    ]
    gaps = strides
    # padded separately: XLA ends the process for some axes of size 1
    if 1 in x.shape[2:]:
        wide = [(0, 0, 0), (0, 0, 0), *((*pair, stride - 1) for pair, stride in zip(around, strides, strict=True))]
        x = jax.lax.optimization_barrier(jax.lax.pad(x, x.dtype.type(0), wide))
        around, gaps = [(0, 0)] * len(kernel), (1,) * len(kernel)
    result = jax.lax.conv_general_dilated(
        x,
        jnp.flip(filters, tuple(range(2, filters.ndim))),
        window_strides=(1,) * len(kernel),
        padding=around,
        lhs_dilation=gaps,
        rhs_dilation=dilations,
        dimension_numbers=(f"NC{axes}", f"OI{axes}", f"NC{axes}"),
        feature_group_count=group,
    )
    return with_bias(result, bias, last=False)


@lowers("CONV_2D_TRANSPOSE", types=ALL_FLOATS, fuse_codes=FUSED, layouts=LAYOUTS)
def lower_transposed_convolution(operation: NamedOperation) -> Computes:
    """Lower CONV_2D_TRANSPOSE."""
    return computes(operation, channels_second(operation, _transposed_convolution))


lower_transposed_volume_convolution = direct({"CONV_3D_TRANSPOSE": _transposed_convolution}, computes, types=ALL_FLOATS)


class _Windows:
    def __init__(self, operation: NamedOperation) -> None:
        last = operation.input.type.layout is Layout.NHWC
        self.last = last
        self.kernel, self.strides, self.dilations = (
            (1, *values, 1) if last else (1, 1, *values)
            for values in (operation.kernel_shape, operation.strides, operation.dilations)
        )
        around = window_padding(operation)
        self.padding = ((0, 0), *around, (0, 0)) if last else ((0, 0), (0, 0), *around)

    def reduce(self, x: Any, first: Any, function: Any) -> Any:
        return jax.lax.reduce_window(
            x, x.dtype.type(first), function, self.kernel, self.strides, self.padding, window_dilation=self.dilations
        )


@lowers("MAX_POOL_2D", types=ALL_NUMBERS, layouts=LAYOUTS, quantized=True)
@lowers("MAX_POOL_3D", types=ALL_NUMBERS)
def lower_max_pool(operation: NamedOperation) -> Computes:
    """Lower maximum pools."""
    windows = _Windows(operation)
    return lambda x: windows.reduce(x, smallest(x.dtype), jax.lax.max)


@lowers("AVERAGE_POOL_2D", types=(*ALL_FLOATS, *COMPUTED), layouts=LAYOUTS, quantized=True)
@lowers("AVERAGE_POOL_3D", types=ALL_FLOATS)
def lower_average_pool(operation: NamedOperation) -> Computes:
    """Lower average pools."""
    windows, divisors = _Windows(operation), window_divisors(operation).astype(np.float64)
    spread = divisors[..., None] if windows.last else divisors
    return computes(
        operation, lambda x, **attributes: windows.reduce(x, 0, jax.lax.add) / jnp.asarray(spread.astype(x.dtype))
    )


@lowers("LP_POOL_2D", "LP_POOL_3D", types=ALL_FLOATS)
def lower_norm_pool(operation: NamedOperation) -> Computes:
    """Lower p-norm pools."""
    windows = _Windows(operation)

    def function(x: Any, p: int, **attributes: Any) -> Any:
        return windows.reduce(jnp.abs(x) ** p, 0, jax.lax.add) ** (1 / p)

    return computes(operation, function)


def places(sizes: Any, counts: Any, operation: NamedOperation) -> tuple[Array, Array]:
    """Return clamped tap indices, [axes, windows, taps], and a mask of taps that are inside the image."""
    rank = len(sizes)
    along = [
        np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - begin
        for count, stride, kernel, dilation, begin in zip(
            counts, operation.strides, operation.kernel_shape, operation.dilations, operation.pads, strict=False
        )
    ]
    full = (*counts, *operation.kernel_shape)
    spread = []
    for axis, table in enumerate(along):
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = table.shape
        spread.append(np.broadcast_to(table.reshape(shape), full).reshape(int(np.prod(counts)), -1))
    indices = np.stack(spread)
    limits = np.array(sizes).reshape(-1, 1, 1)
    inside: Array = np.asarray(((indices >= 0) & (indices < limits)).all(0))
    return np.clip(indices, 0, np.maximum(limits - 1, 0)), inside


@lowers("MAX_POOL_2D_WITH_INDICES", "MAX_POOL_3D_WITH_INDICES", types=ALL_NUMBERS, results=("int32", "int64"))
def lower_max_pool_with_indices(operation: NamedOperation) -> Computes:
    """Lower maximum pools that also return flat indices; of equal elements, the first is chosen."""
    dimensions, counts = operation.input.type.dimensions, operation.output.type.dimensions[2:]
    sizes, planes = dimensions[2:], dimensions[0] * dimensions[1]
    indices, inside = places(sizes, counts, operation)
    flat = np.ravel_multi_index(tuple(indices), sizes)
    order = "C" if operation.storage_order == "row_major" else "F"
    flat_indices = np.ravel_multi_index(tuple(indices), sizes, order=order)  # type: ignore[call-overload]
    dtypes = tuple(operand.type.dtype.array_type for operand in operation.outputs)
    shape = (*dimensions[:2], *counts)

    def compute(x: Any) -> list[Any]:
        windows = x.reshape(planes, int(np.prod(sizes)))[:, flat]
        windows = jnp.where(inside, windows, jnp.asarray(smallest(x.dtype), x.dtype))
        # if all equal the padding, the first tap inside
        chosen = jnp.argmax(jnp.where(inside, (windows == windows.max(-1, keepdims=True)).astype(jnp.int8), -1), -1)
        best = jnp.take_along_axis(windows, chosen[..., None], -1)[..., 0]
        place = jnp.take_along_axis(jnp.asarray(flat_indices)[None], chosen[..., None], -1)[..., 0]
        offset = jnp.arange(planes)[:, None] * int(np.prod(sizes))
        return [best.reshape(shape).astype(dtypes[0]), (place + offset).reshape(shape).astype(dtypes[1])]

    return compute


@lowers("MAX_UNPOOL_2D", types=ALL_NUMBERS)
def lower_unpool(operation: NamedOperation) -> Computes:
    """Lower MAX_UNPOOL_2D."""
    shape = operation.output.type.dimensions

    def compute(x: Any, indices: Any, output_shape: Any) -> Any:
        empty = jnp.zeros(int(np.prod(shape)), x.dtype)
        return empty.at[indices.reshape(-1)].set(x.reshape(-1), mode="drop").reshape(shape)

    return moves(operation, compute)


@lowers("COL_TO_IM", types=ALL_FLOATS)
def lower_columns_to_image(operation: NamedOperation) -> Computes:
    """Lower COL_TO_IM."""
    sizes = operation.image_shape
    result = operation.output.type
    counts = [
        (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, dilation, begin, end in zip(
            sizes,
            operation.kernel_shape,
            operation.strides,
            operation.dilations,
            operation.pads[: len(sizes)],
            operation.pads[len(sizes) :],
            strict=True,
        )
    ]
    indices, inside = places(sizes, counts, operation)
    flat = np.where(inside, np.ravel_multi_index(tuple(indices), sizes), np.prod(sizes)).T.reshape(-1)
    planes = result.dimensions[0] * result.dimensions[1]

    def compute(x: Any) -> Any:
        columns = widened(x).reshape(planes, len(flat))
        image = jnp.zeros((planes, int(np.prod(sizes))), columns.dtype).at[:, flat].add(columns, mode="drop")
        return image.reshape(result.dimensions).astype(result.dtype.array_type)

    return compute
