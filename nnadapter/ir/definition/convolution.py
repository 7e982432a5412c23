"""Reference implementations: convolutions over windows of any rank, [N, C, …] in and out."""

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
    """Yield every tap of a window with its input position, which may be outside."""
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(window[axis] * strides[axis] + step * dilations[axis] - pads[axis] for axis, step in enumerate(tap)),
        )


def is_inside(place: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether a position is inside the input."""
    return all(0 <= index < size for index, size in zip(place, sizes, strict=True))


def _windows(x: Array, counts: Sequence[int], kernel: Any, strides: Any, dilations: Any) -> Array:
    """Return all windows of an input, which is padded, as [N, C, counts…, kernel…]."""
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
    """Contract `parts` [N, C, places…, window…] with `filters` [C', O, window…] per group to [N, O, places…].

    A window has `over` axes.
    """
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
    for batch, bent, *indices in np.ndindex(len(x), offset_group, *kernel, *counts):
        tap, window = indices[:2], indices[2:]
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
input: Images [N, C, H, W], or [N, H, W, C] for layout NHWC.
bias: [O], added to every pixel of channel o; absent: 0.
group: Number of groups into which channels are divided; equal to C for a depthwise convolution.
-> output: [N, O, OH, OW], or [N, OH, OW, O] if the input is NHWC. The data type of `input`.
# CONV_2D: A convolution of images, possibly grouped or depthwise.
| output[n, o, y, x] = activation(bias[o] + sum over c, i, j of
|     filter[o, c, i, j] * padded[n, g * C/group + c,
|                                 y * stride_h + i * dilation_h, x * stride_w + j * dilation_w])
| with g = floor(o / (O/group)), and padded: the input with its pads
| OH = floor((H + top + bottom - dilation_h * (kH - 1) - 1) / stride_h) + 1; same for OW
filter: [O, C/group, kH, kW], in this order for every layout of the image.
strides: (height, width): distance between windows in the input.
pads: (top, left, bottom, right): zeros around the input, 0 or more. First both begins, then both ends.
dilations: (height, width): distance between taps of the filter in the input; 1 leaves no gap.
- The filter is not mirrored: this is a cross-correlation, as usual.
- Pads are (top, left, bottom, right), not (top, bottom, left, right).
- A last partial window is omitted.
- Depthwise: the filter is [C * multiplier, 1, kH, kW] and group is C; there is no separate operation.
- Quantized: zero points are subtracted first, so padding is real 0, which is the integer zero point. The filter may be
  quantized along axis 0.
- Without a quantized result, quantized inputs give the sums in int32 (int64 with 16 bits), and no fuse code applies.
- The passes fuse_batch_normalization, fuse_scale_and_bias, fuse_activation and fuse_pad fold adjacent operations into
  it.
FLOPs: 2 * output elements * C/group * kH * kW, plus 1 per output element for the bias, plus the activation
example: counting(1, 1, 3, 3), [[[[1.0, 0.0], [0.0, -1.0]]]], [5.0], pads=(0, 0, 1, 1), strides=(2, 2), fuse_code='relu'
# CONV_2D_TRANSPOSE: A transposed convolution: every input pixel adds its multiple of the filter to the output.
| full[n, o, y * stride_h + i * dilation_h, x * stride_w + j * dilation_w] +=
|     input[n, c, y, x] * filter[c, o - g * O/group, i, j]    for the c of group g = floor(o / (O/group))
| output = activation(full without its pads + bias[o])
| OH = stride_h * (H - 1) + dilation_h * (kH - 1) + 1 + output_padding_h - top - bottom; same for OW
filter: [C, O/group, kH, kW]: input channels first, unlike CONV_2D.
strides: (height, width): distance between input pixels in the output.
pads: (top, left, bottom, right): crop of the full result, 0 or more.
dilations: (height, width): distance between taps of the filter in the output.
output_padding: (height, width): rows and columns added at the bottom and right of the full result, before pads are
  cropped; less than the larger of stride and dilation.
- Pads crop the result; they do not pad the input.
- Rows from output_padding are zeros plus bias, unless bottom pads crop them.
- Sizes are resolved: ONNX's auto_pad and output_shape have become pads.
- The output channels of group 0 come first.
- Quantized: zero points are subtracted first. The filter may be quantized along axis 1 if group is 1. Without a
  quantized result, the result is the sums in int32 (int64 with 16 bits), and no fuse code applies.
FLOPs: 2 * input elements * O/group * kH * kW, plus 1 per output element for the bias, plus the activation
example: counting(1, 1, 2, 2), counting(1, 1, 2, 2), strides=(2, 2), pads=(0, 0, 1, 1), output_padding=(1, 1)
# CONV_3D: A convolution of volumes.
| output[n, o, z, y, x] = bias[o] + sum over c, h, i, j of filter[o, c, h, i, j] *
|     padded[n, g * C/group + c, z * stride_d + h * dilation_d, y * stride_h + i * dilation_h, x * stride_w + j * \
dilation_w]
| with g = floor(o / (O/group)); sizes as in CONV_2D
input: Volumes [N, C, D, H, W].
filter: [O, C/group, kD, kH, kW].
bias: [O], added to every element of channel o.
strides: (depth, height, width): distance between windows in the input.
pads: (front, top, left, back, bottom, right): zeros around the input. First the begins, then the ends.
dilations: (depth, height, width): distance between taps of the filter.
group: Number of groups into which channels are divided.
-> output: [N, O, OD, OH, OW]. The data type of `input`.
- NCDHW only; there is no fuse code.
- The filter is not mirrored.
FLOPs: 2 * output elements * C/group * kD * kH * kW, plus 1 per output element for the bias
example: counting(1, 1, 2, 2, 2), [[[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 10.0]]]]]
# CONV_3D_TRANSPOSE: A transposed convolution of volumes.
| full[n, o, z * stride_d + h * dilation_d, y * stride_h + i * dilation_h, x * stride_w + j * dilation_w] +=
|     input[n, c, z, y, x] * filter[c, o - g * O/group, h, i, j]    for the c of group g = floor(o / (O/group))
| output = full without its pads + bias[o]; sizes as in CONV_2D_TRANSPOSE
input: Volumes [N, C, D, H, W].
filter: [C, O/group, kD, kH, kW]: input channels first, unlike CONV_3D.
bias: [O], added to every element of channel o.
strides: (depth, height, width): distance between input elements in the output.
pads: (front, top, left, back, bottom, right): crop of the full result.
dilations: (depth, height, width): distance between taps of the filter in the output.
group: Number of groups into which channels are divided.
output_padding: (depth, height, width): elements added at the end of the full result, before pads are cropped; less than
  the larger of stride and dilation.
-> output: [N, O, OD, OH, OW]. The data type of `input`.
- NCDHW only; there is no fuse code.
- Pads crop the result.
FLOPs: 2 * input elements * O/group * kD * kH * kW, plus 1 per output element for the bias
example: [[[[[1.0, 2.0]]]]], counting(1, 1, 1, 2, 2), strides=(1, 1, 2)
# DEFORMABLE_CONV_2D: A convolution with a separate offset, and optionally a weight, for every tap.
| output[n, o, y, x] = bias[o] + sum over c, i, j of filter[o, c, i, j] * m * sampled(input[n, k], place)
| k = g * C/group + c with g = floor(o / (O/group)); q = floor(k / (C / offset_group)); t = (q * kH + i) * kW + j
| place = (y * stride_h + i * dilation_h - top + offset[n, 2 * t, y, x],
|          x * stride_w + j * dilation_w - left + offset[n, 2 * t + 1, y, x])
| m = mask[n, t, y, x], or 1; sampled: linear interpolation, with 0 outside
input: Images [N, C, H, W]; NCHW only.
filter: [O, C/group, kH, kW].
offset: [N, offset_group * kH * kW * 2, OH, OW]: (height, width) for every tap, in pixels.
bias: [O], added to every pixel of channel o.
mask: [N, offset_group * kH * kW, OH, OW]: factors of the taps.
strides: (height, width): distance between windows.
pads: (top, left, bottom, right): zeros around the input.
dilations: (height, width): distance between taps before they are moved.
group: Number of groups into which channels are divided, as in CONV_2D.
offset_group: Number of groups of input channels with separate offsets.
-> output: [N, O, OH, OW], sizes as in CONV_2D. The data type of `input`.
- Offsets are (height, width) for each tap, taps in row-major order, offset groups outermost.
- A neighbor outside is 0; a position half outside gets its share from inside.
- Among the inputs, the bias comes before the mask.
FLOPs: as CONV_2D, plus 8 per element of every window
example: counting(1, 1, 2, 2), [[[[2.0]]]], [[[[0.5, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.5]]]]
"""
