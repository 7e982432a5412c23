"""Reference: convolutions over windows of any rank, [N, C, …] in and out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.definition.resampling import along, weigh
from nnadapter.ir.operand import Array


def _count(size: int, begin: int, end: int, kernel: int, stride: int, dilation: int, ceil: bool) -> int:
    room = size + begin + end - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + begin else count


def window_counts(sizes: Sequence[int], kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> list[int]:
    """Return the number of windows along each axis."""
    rank = len(sizes)
    return [
        _count(size, pads[axis], pads[axis + rank], kernel[axis], strides[axis], dilations[axis], ceil)
        for axis, size in enumerate(sizes)
    ]


def window_places(
    window: Sequence[int], kernel: Any, strides: Any, pads: Any, dilations: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield every tap of one window with its input position, which may be outside."""
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(window[axis] * strides[axis] + step * dilations[axis] - pads[axis] for axis, step in enumerate(tap)),
        )


def is_inside(place: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return True if a position is inside the input."""
    return all(0 <= index < size for index, size in zip(place, sizes, strict=True))


def _windows(x: Array, counts: Sequence[int], kernel: Any, strides: Any, dilations: Any) -> Array:
    """Return `[N, C, counts…, kernel…]` of a sufficiently padded input."""
    rank = len(counts)
    for axis, count in enumerate(counts):
        places = np.arange(count)[:, None] * strides[axis] + np.arange(kernel[axis])[None, :] * dilations[axis]
        x = np.take(x, places, 2 + 2 * axis)
    return np.moveaxis(x, range(3, 3 + 2 * rank, 2), range(2 + rank, 2 + 2 * rank))


def padded_windows(x: Array, fill: Any, kernel: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> Array:
    """Return all windows, [N, C, counts…, kernel…], of an input padded with `fill`."""
    sizes, rank = x.shape[2:], x.ndim - 2
    counts = window_counts(sizes, kernel, strides, pads, dilations, ceil)
    reach = [
        (count - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 for axis, count in enumerate(counts)
    ]
    room = [(pads[axis], max(pads[axis + rank], reach[axis] - pads[axis] - size)) for axis, size in enumerate(sizes)]
    return _windows(np.pad(x, ((0, 0), (0, 0), *room), constant_values=fill), counts, kernel, strides, dilations)


def _contracted(parts: Array, filters: Array, group: int, over: int) -> Array:
    """Contract [N, C, places…, over axes…] with [C', O, over axes…] per group, to [N, O, places…]."""
    ends = [range(array.ndim - over, array.ndim) for array in (parts, filters)]
    products = [
        np.tensordot(part, some, ([1, *ends[0]], [0, *ends[1]]))
        for part, some in zip(np.split(parts, group, 1), np.split(filters, group, 0), strict=True)
    ]
    return np.concatenate([np.moveaxis(product, -1, 1) for product in products], 1)


def _with_bias(result: Array, bias: Array | None) -> Array:
    return result if bias is None else result + bias.reshape(-1, *[1] * (result.ndim - 2))


def _conv(
    x: Array, weights: Array, bias: Array | None = None, *, strides: Any, pads: Any, dilations: Any, group: int
) -> Array:
    windows = padded_windows(x, 0, weights.shape[2:], strides, pads, dilations, False)
    by_group = [part.swapaxes(0, 1) for part in np.split(weights, group, 0)]
    return _with_bias(_contracted(windows, np.concatenate(by_group), group, x.ndim - 2), bias)


def _conv_transpose(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    output_padding: Any,
) -> Array:
    sizes, kernel, rank = x.shape[2:], weights.shape[2:], x.ndim - 2
    full = [
        strides[axis] * (size - 1) + (kernel[axis] - 1) * dilations[axis] + 1 + output_padding[axis]
        for axis, size in enumerate(sizes)
    ]
    result = np.zeros((len(x), weights.shape[1] * group, *full))
    for tap in np.ndindex(*kernel):
        starts = [step * dilation for step, dilation in zip(tap, dilations, strict=True)]
        where = (
            slice(start, start + stride * (size - 1) + 1, stride)
            for start, stride, size in zip(starts, strides, sizes, strict=True)
        )
        result[(slice(None), slice(None), *where)] += _contracted(x, weights[(..., *tap)], group, 0)
    inside = (slice(pads[axis], size - pads[axis + rank]) for axis, size in enumerate(full))
    return _with_bias(result[(slice(None), slice(None), *inside)], bias)


def _deformable(
    x: Array,
    weights: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    group: int,
    offset_group: int,
) -> Array:
    kernel, counts = weights.shape[2:], offset.shape[2:]
    offset = offset.reshape(len(x), offset_group, *kernel, 2, *counts)
    mask = np.ones((len(x), offset_group, *kernel, *counts)) if mask is None else mask
    mask = mask.reshape(len(x), offset_group, *kernel, *counts)
    result = np.zeros((len(x), len(weights), *counts))
    for batch, bent, *rest in np.ndindex(len(x), offset_group, *kernel, *counts):
        tap, window = rest[:2], rest[2:]
        axes = []
        for axis, size in enumerate(x.shape[2:]):
            place = window[axis] * strides[axis] + tap[axis] * dilations[axis] - pads[axis]
            place = place + offset[(batch, bent, *tap, axis, *window)]
            axes.append(along(place, size, "linear", "zeros", 0, 0))
        values = np.zeros(x.shape[1])
        share = slice(bent * x.shape[1] // offset_group, (bent + 1) * x.shape[1] // offset_group)
        values[share] = weigh(x[batch, share], axes) * mask[(batch, bent, *tap, *window)]
        for output in range(len(weights)):
            first = output // (len(weights) // group) * weights.shape[1]
            factor = weights[(output, slice(None), *tap)]
            result[(batch, output, *window)] += values[first : first + weights.shape[1]] @ factor
    return result if bias is None else result + bias[:, None, None]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "CONV_2D": _conv,
    "CONV_3D": _conv,
    "CONV_2D_TRANSPOSE": _conv_transpose,
    "CONV_3D_TRANSPOSE": _conv_transpose,
    "DEFORMABLE_CONV_2D": _deformable,
}

DOCS = """\
# *
input: Images [N, C, H, W], or [N, H, W, C] if the layout says NHWC.
bias: [O], added to every pixel of channel o; none adds nothing.
group: In how many shares channels are kept apart; equal to C for a depthwise convolution.
-> output: [N, O, OH, OW], or [N, OH, OW, O] if the input is NHWC. The data type of `input`.
# CONV_2D: A convolution of images; grouped and depthwise ones, too.
| output[n, o, y, x] = activation(bias[o] + sum over c, i, j of
|     filter[o, c, i, j] * padded[n, g * C/group + c,
|                                 y * down + i * dilation_down, x * across + j * dilation_across])
| with g = floor(o / (O/group)), and padded: the input with its pads
| OH = floor((H + top + bottom - dilation_down * (kH - 1) - 1) / down) + 1; OW alike
filter: [O, C/group, kH, kW], in this order whatever the layout of the image.
strides: (down, across): how far the window moves in the input from one output pixel to the next.
pads: (top, left, bottom, right): zeros around the input, 0 or more. First both begins, then both ends.
dilations: (down, across): distance of two taps of the filter in the input; 1 leaves no gap.
- The filter is not mirrored: it is a cross-correlation, as everywhere in this field.
- Pads are (top, left, bottom, right), not (top, bottom, left, right).
- A last window that does not fit whole is left out.
- Depthwise: the filter is [C * multiplier, 1, kH, kW] and group is C; there is no operation of its own.
- Quantized: zero points are subtracted first, so pads stand for real 0, which is the integer zero point. The filter may
  be quantized along axis 0.
- Without a quantized result, quantized inputs give the sums in int32, and no fuse code applies.
- fuse_batch_normalization, fuse_scale_and_bias, fuse_activation and fuse_pad fold what stands around it into it.
FLOPs: 2 * output elements * C/group * kH * kW, 1 more for each with a bias, and the activation's steps
example: counting(1, 1, 3, 3), [[[[1.0, 0.0], [0.0, -1.0]]]], [5.0], pads=(0, 0, 1, 1), strides=(2, 2), fuse_code='relu'
# CONV_2D_TRANSPOSE: A transposed convolution: every input pixel adds its multiple of the filter to the output.
| full[n, o, y * down + i * dilation_down, x * across + j * dilation_across] +=
|     input[n, c, y, x] * filter[c, o - g * O/group, i, j]    for the c of group g = floor(o / (O/group))
| output = activation(full without its pads + bias[o])
| OH = down * (H - 1) + dilation_down * (kH - 1) + 1 + output_padding_down - top - bottom; OW alike
filter: [C, O/group, kH, kW]: input channels first, the other way round than in CONV_2D.
strides: (down, across): how far apart input pixels come to lie in the output.
pads: (top, left, bottom, right): how much is cut off the full result, 0 or more.
dilations: (down, across): distance of two taps of the filter in the output.
output_padding: (down, across): rows and columns that are added at the bottom and right end of the full result, before
  pads are cut off; less than the larger of stride and dilation.
- Pads take away from the result; they do not add to the input.
- Rows that output_padding adds are zeros plus bias, unless bottom pads cut them off again.
- Sizes are worked out: ONNX's auto_pad and output_shape have become pads.
- Of several groups, the output channels of group 0 come first.
FLOPs: 2 * input elements * O/group * kH * kW, 1 for each output element with a bias, and the activation's steps
example: counting(1, 1, 2, 2), counting(1, 1, 2, 2), strides=(2, 2), pads=(0, 0, 1, 1), output_padding=(1, 1)
# CONV_3D: A convolution of volumes.
| output[n, o, z, y, x] = bias[o] + sum over c, h, i, j of filter[o, c, h, i, j] *
|     padded[n, g * C/group + c, z * deep + h * dilation_deep, y * down + i * dilation_down, x * across + j * \
dilation_across]
| with g = floor(o / (O/group)); sizes as in CONV_2D
input: Volumes [N, C, D, H, W].
filter: [O, C/group, kD, kH, kW].
bias: [O], added to every element of channel o.
strides: (deep, down, across): how far the window moves from one output element to the next.
pads: (front, top, left, back, bottom, right): zeros around the input. First the begins, then the ends.
dilations: (deep, down, across): distance of two taps of the filter.
group: In how many shares channels are kept apart.
-> output: [N, O, OD, OH, OW]. The data type of `input`.
- It has no fuse code, and no other layout.
- The filter is not mirrored.
FLOPs: 2 * output elements * C/group * kD * kH * kW, and 1 more for each with a bias
example: counting(1, 1, 2, 2, 2), [[[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 10.0]]]]]
# CONV_3D_TRANSPOSE: A transposed convolution of volumes.
| full[n, o, z * deep + h * dilation_deep, y * down + i * dilation_down, x * across + j * dilation_across] +=
|     input[n, c, z, y, x] * filter[c, o - g * O/group, h, i, j]    for the c of group g = floor(o / (O/group))
| output = full without its pads + bias[o]; sizes as in CONV_2D_TRANSPOSE
input: Volumes [N, C, D, H, W].
filter: [C, O/group, kD, kH, kW]: input channels first, the other way round than in CONV_3D.
bias: [O], added to every element of channel o.
strides: (deep, down, across): how far apart input elements come to lie in the output.
pads: (front, top, left, back, bottom, right): how much is cut off the full result.
dilations: (deep, down, across): distance of two taps of the filter in the output.
group: In how many shares channels are kept apart.
output_padding: (deep, down, across): what is added at the far end of the full result, before pads are cut off; less
  than the larger of stride and dilation.
-> output: [N, O, OD, OH, OW]. The data type of `input`.
- It has no fuse code, and no other layout.
- Pads take away from the result.
FLOPs: 2 * input elements * O/group * kD * kH * kW, and 1 for each output element with a bias
example: [[[[[1.0, 2.0]]]]], counting(1, 1, 1, 2, 2), strides=(1, 1, 2)
# DEFORMABLE_CONV_2D: A convolution whose taps are moved, each by an offset of its own, and may be weighed.
| output[n, o, y, x] = bias[o] + sum over c, i, j of filter[o, c, i, j] * m * sampled(input[n, k], place)
| k = g * C/group + c with g = floor(o / (O/group)); q = floor(k / (C / offset_group)); t = (q * kH + i) * kW + j
| place = (y * down + i * dilation_down - top + offset[n, 2 * t, y, x],
|          x * across + j * dilation_across - left + offset[n, 2 * t + 1, y, x])
| m = mask[n, t, y, x], or 1; sampled: linear interpolation, with 0 outside
input: Images [N, C, H, W]; no other layout.
filter: [O, C/group, kH, kW].
offset: [N, offset_group * kH * kW * 2, OH, OW]: for every tap (down, across), in pixels.
bias: [O], added to every pixel of channel o.
mask: [N, offset_group * kH * kW, OH, OW]: factors of the taps.
strides: (down, across): how far the window moves.
pads: (top, left, bottom, right): zeros around the input.
dilations: (down, across): distance of two taps before they are moved.
group: In how many shares channels are kept apart, as in CONV_2D.
offset_group: In how many shares input channels have offsets of their own.
-> output: [N, O, OH, OW], sizes as in CONV_2D. The data type of `input`.
- Offsets are (down, across) for each tap, taps in row-major order, offset groups outermost.
- A neighbor outside is 0; a place half outside takes its share of what is inside.
- The bias stands before the mask among the inputs.
FLOPs: as CONV_2D, and 8 for every element of every window
example: counting(1, 1, 2, 2), [[[[2.0]]]], [[[[0.5, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.5]]]]
"""
"""Documentation, parsed by `documentation`."""
