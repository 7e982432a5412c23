"""Reference implementations: pooling over windows of any rank, [N, C, …] in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.definition.convolution import is_inside, padded_windows, window_counts, window_places
from nnadapter.ir.operand import Array


def _pool(fill: Callable[[Array], Any], combine: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pooling function. `combine` reduces the window along the last axis; `fill` returns the padding value."""

    def pooled(
        x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, **more: Any
    ) -> Any:
        windows = padded_windows(x, fill(x), kernel_shape, strides, pads, dilations, ceil_mode)
        return combine(windows.reshape(*windows.shape[: x.ndim], -1), **more)

    return pooled


def _lowest(x: Array) -> Any:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


_sum_pool = _pool(lambda x: 0, lambda elements: elements.sum(-1))


def _average_pool(x: Array, *, pads: Any, count_include_pad: bool, **more: Any) -> Any:
    counted, rank = np.ones((1, 1, *x.shape[2:])), x.ndim - 2
    total = _sum_pool(x, pads=pads, **more)
    if not count_include_pad:
        return total / _sum_pool(counted, pads=pads, **more)
    # Explicit pads count; the part of a ceil-mode window beyond them does not.
    counted = np.pad(counted, ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)), constant_values=1)
    count = _sum_pool(counted, pads=(0,) * 2 * rank, **more)
    return total / count[tuple(map(slice, (1, 1, *total.shape[2:])))]


def _max_with_indices(
    x: Array, *, kernel_shape: Any, strides: Any, pads: Any, dilations: Any, ceil_mode: bool, storage_order: str
) -> list[Array]:
    sizes = x.shape[2:]
    counts = window_counts(sizes, kernel_shape, strides, pads, dilations, ceil_mode)
    result, indices = np.zeros((*x.shape[:2], *counts), x.dtype), np.zeros((*x.shape[:2], *counts), np.int64)
    order = "C" if storage_order == "row_major" else "F"
    for plane in np.ndindex(*x.shape[:2]):
        offset = (plane[0] * x.shape[1] + plane[1]) * int(np.prod(sizes))
        for window in np.ndindex(*counts):
            places = [place for _, place in window_places(window, kernel_shape, strides, pads, dilations)]
            best = max((place for place in places if is_inside(place, sizes)), key=lambda place: x[(*plane, *place)])
            result[(*plane, *window)] = x[(*plane, *best)]
            indices[(*plane, *window)] = offset + np.ravel_multi_index(best, sizes, order=order)  # type: ignore[call-overload]
    return [result, indices]


def _unpool(x: Array, indices: Array, output_shape: Any) -> Any:
    result = np.zeros((*x.shape[:2], *output_shape), x.dtype)
    for place in np.ndindex(x.shape):
        result.reshape(-1)[indices[place]] = x[place]
    return result


def _col_to_im(x: Array, *, image_shape: Any, kernel_shape: Any, strides: Any, pads: Any, dilations: Any) -> Array:
    counts = window_counts(image_shape, kernel_shape, strides, pads, dilations, False)
    columns = x.reshape(len(x), -1, *kernel_shape, *counts)
    result = np.zeros((*columns.shape[:2], *image_shape))
    for window in np.ndindex(*counts):
        for tap, place in window_places(window, kernel_shape, strides, pads, dilations):
            if is_inside(place, image_shape):
                where = (slice(None), slice(None))
                result[(*where, *place)] += columns[(*where, *tap, *window)]
    return result


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "MAX_POOL": _pool(_lowest, lambda elements: elements.max(-1)),
    "AVERAGE_POOL": _average_pool,
    "LP_POOL": _pool(lambda x: 0, lambda elements, p: (np.abs(elements) ** p).sum(-1) ** (1 / p)),
}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f"{name}_{rank}D": function for name, function in _FUNCTIONS.items() for rank in (2, 3)},
    **{f"MAX_POOL_{rank}D_WITH_INDICES": _max_with_indices for rank in (2, 3)},
    "MAX_UNPOOL_2D": _unpool,
    "COL_TO_IM": _col_to_im,
}

DOCS = """\
# *
input: Volumes [N, C, D, H, W]; NCHW only.
kernel_shape: Size of the window along each spatial axis.
strides: Distance between windows along each spatial axis.
pads: Padding of the input: the begins of all spatial axes, then the ends, so (top, left, bottom, right) for images.
  Each is less than the window's extent.
dilations: Distance between elements of the window along each spatial axis.
ceil_mode: True: a last partial window counts as well, if it starts in the input or in the padding before it.
-> output: [N, C, OD, OH, OW]. The data type of `input`.
count_include_pad: True: the divisor includes padding. False: the divisor is the number of input elements in the window.
p: The power, 1 or more.
storage_order: Order of spatial positions. `row_major`: the last spatial axis varies fastest. `column_major`: the first
  one does.
-> indices: int64, dimensions of `output`: the index of each maximum in the entire input, (n * C + c) * spatial elements
  + the position within them.
example: counting(1, 1, 2, 2, 4), kernel_shape=(2, 2, 2), strides=(1, 1, 2)
# MAX_POOL_2D: The largest element of each window of an image.
| output[n, c, y, x] = max over i, j of padded[n, c, y * stride_h + i * dilation_h, x * stride_w + j * dilation_w]
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
input: Images [N, C, H, W], or [N, H, W, C] for layout NHWC.
-> output: [N, C, OH, OW], or [N, OH, OW, C] if the input is NHWC. The data type of `input`.
- Padding is -inf, for integers the smallest number, not 0.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- Quantized operands: integers are compared, and the result has the quantization of the input.
- For ONNX's second output, the indices, use MAX_POOL_2D_WITH_INDICES.
- The pass fuse_pad folds a PAD before it into its pads.
FLOPs: output elements * kernel_shape[0] * kernel_shape[1]
example: counting(1, 1, 3, 3), kernel_shape=(2, 2), strides=(2, 2), pads=(1, 1, 0, 0), ceil_mode=True
# AVERAGE_POOL_2D: The mean of each window of an image.
| output[n, c, y, x] = sum over i, j of padded[n, c, y * stride_h + i * dilation_h, x * stride_w + j * dilation_w] \
/ divisor[y, x]
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
input: Images [N, C, H, W], or [N, H, W, C] for layout NHWC.
-> output: [N, C, OH, OW], or [N, OH, OW, C] if the input is NHWC. The data type of `input`.
- The divisor varies between windows: at padded edges if count_include_pad is false, and for partial last windows with
  ceil_mode in any case.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- Global pooling is REDUCE_MEAN over both axes.
- The pass fuse_pad folds a PAD before it into its pads, with count_include_pad true.
FLOPs: output elements * kernel_shape[0] * kernel_shape[1]
example: counting(1, 1, 3, 3), kernel_shape=(2, 2), strides=(2, 2), pads=(1, 1, 0, 0), ceil_mode=True
# MAX_POOL_3D: The largest element of each window of a volume.
| output[n, c, z, y, x] = max of the window
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
- Padding is -inf, for integers the smallest number, not 0.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window
# AVERAGE_POOL_3D: The mean of each window of a volume.
| output[n, c, z, y, x] = sum of the window / divisor[z, y, x]
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
- The divisor varies between windows, as in AVERAGE_POOL_2D.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window
# LP_POOL_2D: The p-norm of each window of an image.
| output[n, c, y, x] = (sum of |each element of the window| ^ p) ^ (1 / p)
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
input: Images [N, C, H, W]; NCHW only.
-> output: [N, C, OH, OW]. The data type of `input`.
- Padding is 0. The sum is not divided by the number of elements.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window * 3
example: counting(1, 1, 2, 4), kernel_shape=(2, 2), strides=(1, 2)
# LP_POOL_3D: The p-norm of each window of a volume.
| output[n, c, z, y, x] = (sum of |each element of the window| ^ p) ^ (1 / p)
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
- Padding is 0. The sum is not divided by the number of elements.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window * 3
example: counting(1, 1, 2, 2, 4), kernel_shape=(2, 2, 2), strides=(1, 1, 2), p=1
# MAX_POOL_2D_WITH_INDICES: The largest element of each window of an image, and its index.
| output[n, c, y, x] = max of the window; indices: its first index
| row_major: (n * C + c) * H * W + row * W + column; column_major: (n * C + c) * H * W + column * H + row
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
input: Images [N, C, H, W]; NCHW only.
-> output: [N, C, OH, OW]. The data type of `input`.
- Padding is -inf, for integers the smallest number, not 0.
- Indices count elements of the entire input, including batch and channels, without padding.
- Among equal elements, the first in row-major order of the window is selected, in both storage orders.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window
example: counting(1, 1, 2, 4), kernel_shape=(2, 2), strides=(1, 2)
# MAX_POOL_3D_WITH_INDICES: The largest element of each window of a volume, and its index.
| output[n, c, z, y, x] = max of the window; indices: its first index
| row_major: (n * C + c) * D * H * W + (depth * H + row) * W + column
| column_major: (n * C + c) * D * H * W + (column * H + row) * D + depth
| extent = dilation * (kernel - 1) + 1
| OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode, ceil instead of floor, and one less if
|      the last window would start at H + begin or later
- Padding is -inf, for integers the smallest number, not 0.
- Indices count elements of the entire input, including batch and channels, without padding.
- Among equal elements, the first in row-major order of the window is selected, in both storage orders.
- With ceil_mode, the part of a window beyond the padding is ignored, in maxima and in divisors.
- NCHW only; there is no quantized form.
FLOPs: output elements * elements of the window
# MAX_UNPOOL_2D: The inverse of MAX_POOL_2D_WITH_INDICES: maxima at their indices, zeros elsewhere.
| output = 0; flat(output)[indices[n, c, y, x]] = input[n, c, y, x]
input: The maxima, [N, C, H, W].
indices: [N, C, H, W]: indices into the entire output, in row-major order.
output_shape: (height, width) of the result.
-> output: [N, C, height, width]. The data type of `input`.
- Indices count elements of the entire output, including batch and channels.
- ONNX's MaxUnpool of another rank becomes it between two RESHAPEs.
- Among equal indices, the last one wins.
example: [[[[6.0, 8.0]]]], [[[[5, 7]]]], output_shape=(2, 4)
# COL_TO_IM: An image reassembled from columns that are its blocks; overlapping blocks are added.
| output[n, c, y * stride_h + i * dilation_h - top, x * stride_w + j * dilation_w - left] +=
|     input[n, (c * kH + i) * kW + j, y * columns of blocks + x]    if inside the image
input: [N, C * elements per block, blocks].
image_shape: Sizes of the image, one per spatial axis.
kernel_shape: Sizes of a block.
strides: Distance between blocks along each axis.
pads: Padding around the image: all begins, then all ends. Elements there are dropped.
dilations: Distance between elements of a block along each axis.
-> output: [N, C, image_shape…]. The data type of `input`.
- Every list is required: there are no defaults.
- The image may have any number of spatial axes; the formula is for two.
- Blocks are in row-major order, as are the elements of a block.
example: [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]], image_shape=(3, 3),
  kernel_shape=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)
"""
