"""Convolutions, forwards and transposed, over windows of any rank."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, LAYOUTS, Function, channels_second, computes
from nnadapter.drivers.xla.lowerings.elementwise import FUSED
from nnadapter.drivers.xla.lowerings.integers import COMPUTED
from nnadapter.drivers.xla.lowerings.normalization import per_channel
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array, Layout

_AXES = {2: "HW", 3: "DHW"}
_MOST_TAPS = 49
"""Filters that are larger are left to XLA, as what is compiled grows by each element."""


def with_bias(result: Any, bias: Any, last: bool) -> Any:
    """A result with one number more for each channel, which is the last axis or the second."""
    if bias is None:
        return result
    return result + (bias if last else per_channel(bias, result.ndim))


def _pairs(pads: Any) -> list[tuple[int, int]]:
    """[begin…, end…] as a pair for each axis."""
    rank = len(pads) // 2
    return list(zip(pads[:rank], pads[rank:], strict=True))


def convolution(last: bool, is_packed: bool) -> Function:
    """The function of a convolution.

    Args:
        last: channels are the last axis.
        is_packed: the filter is [H, W, I, O], as `pack_filter` gives it.
    """

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
    """A filter for each channel, [H, W, 1, C], as a sum of moved pictures: XLA's own loop takes 10 times as long."""
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
    """[O, I, H, W] as [H, W, I, O], which XLA's convolutions on processors want; they would turn it at every run."""
    return np.ascontiguousarray(np.moveaxis(weights, (1, 0), (-2, -1)))


def _with_filter(operation: NamedOperation, *, last: bool) -> Computes:
    is_packed = operation.filter.value is not None
    return computes(operation, convolution(last, is_packed), pack_filter if is_packed else None)


@lowers("CONV_2D", types=(*ALL_FLOATS, *COMPUTED), fuse_codes=FUSED, layouts=LAYOUTS, quantized=True)
def lower_convolution(operation: NamedOperation) -> Computes:
    """Convolutions of pictures."""
    return _with_filter(operation, last=operation.input.type.layout is Layout.NHWC)


@lowers("CONV_3D", types=ALL_FLOATS)
def lower_volume_convolution(operation: NamedOperation) -> Computes:
    """Convolutions of volumes."""
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
    """A convolution of a picture with gaps between its elements, by the filter turned around."""
    kernel, axes = weights.shape[2:], _AXES[x.ndim - 2]
    by_group = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:])
    filters = jnp.swapaxes(by_group, 1, 2).reshape(-1, weights.shape[0] // group, *kernel)
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    around = [
        (far - begin, far - end + more)
        for far, (begin, end), more in zip(reach, _pairs(pads), output_padding, strict=True)
    ]
    gaps = strides
    if 1 in x.shape[2:]:  # XLA ends the process where it pads some convolutions of such an axis itself, or sees it done
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
    """Transposed convolutions of pictures."""
    return computes(operation, channels_second(operation, _transposed_convolution))


@lowers("CONV_3D_TRANSPOSE", types=ALL_FLOATS)
def lower_transposed_volume_convolution(operation: NamedOperation) -> Computes:
    """Transposed convolutions of volumes."""
    return computes(operation, _transposed_convolution)
