"""Convolution by matrix product: the windows of a block of outputs become the rows of one matrix.

Images are [N, H, W, C]. The filter [O, C / group, kH, kW] is packed at compile time as [group, kH * kW * C / group,
O / group], so that a window's elements lie in the order in which they are copied: row, column, channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import blocks, even_blocks, gemm_rows
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.matrix import bind_epilogue, bind_rows
from nnadapter.drivers.fake_npu.kernels.windows import Window, bind_padded_copy
from nnadapter.ir.operand import Array


def pack_filter(weight: Array, *, group: int) -> Array:
    """[O, C / group, kH, kW] -> [group, kH * kW * C / group, O / group], contiguous."""
    outputs, channels, height, width = weight.shape
    grouped = weight.reshape(group, outputs // group, channels, height, width)
    return np.ascontiguousarray(grouped.transpose(0, 3, 4, 2, 1)).reshape(group, -1, outputs // group)


def widen(packed: Array) -> Array:
    """The same in float64, twice the bytes, for `scoring_convolution`."""
    return packed.astype(np.float64)


def _bind_pointwise(call: Call) -> Run:
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    rows, result = x.reshape(-1, x.shape[3]), out.reshape(-1, out.shape[3])
    return bind_rows(rows, weight[0], bias[0] if bias else None, result, call.finish)


def _scoring_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The image and the result in float64."""
    return tuple(TensorType("float64", type_.dimensions) for type_ in (inputs[0], outputs[0]))


def _bind_scoring(call: Call) -> Run:
    """A pointwise convolution accumulated in float64 and rounded once, for scores of classes.

    Why: equal filters must give equal scores, so that ties stay ties. A matrix product in float32 adds up its columns
    in different orders, and equal filters give results that differ in the last bit; where scores are large, a softmax
    makes of that bit a winner. Rounded from float64, they are equal but for sums that lie at the edge of two floats.

    What it costs: a bit over twice the time of the product in float32, copies in float64 of the image and of the
    result, and a filter of twice the bytes. A network has one such convolution, at its end.
    """
    (x, weight, *bias), (out,), (wide, scores) = call.inputs, call.outputs, call.scratch
    rows, products = wide.reshape(-1, wide.shape[3]), scores.reshape(-1, scores.shape[3])

    return in_sequence(
        [
            partial(np.copyto, wide, x),
            partial(np.matmul, rows, weight[0], products),
            partial(np.copyto, out, scores, casting="same_kind"),
            *bind_epilogue(out, bias[0] if bias else None, call.finish),
        ]
    )


def _output_blocks(result: tuple[int, ...], row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cut outputs [N, H, W, C] into blocks of whole rows, or of whole images where these are small."""
    images, height, width = result[:3]
    limit = gemm_rows(row_bytes)
    images_at_once = max(1, limit // (height * width))
    whole = images_at_once > 1
    for some in blocks(images, images_at_once):
        for rows in even_blocks(height, height if whole else max(1, limit // width)):
            yield some, rows


def _convolution_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The matrix of one block, then the padded copy if there is one."""
    window, result = Window.of(parameters), outputs[0].dimensions
    depth = inputs[1].dimensions[1]
    rows = max(_block_rows(block, result) for block in _output_blocks(result, depth * 4))
    needed = [TensorType("float32", (rows, depth))]
    image = inputs[0].dimensions
    if window.needs_copy(image, result, 1):
        needed.append(TensorType("float32", window.copy_dimensions(image, result, 1)))
    return tuple(needed)


def _block_rows(block: tuple[slice, slice], result: tuple[int, ...]) -> int:
    images, rows = block
    return int(images.stop - images.start) * int(rows.stop - rows.start) * result[2]


def _window_view(image: Array, window: Window, result: tuple[int, ...], channels: slice) -> Array:
    """[N, H, W, kH, kW, C / group]: the window of every output, without a copy; `image` is [N, H, W, C]."""
    part = image[..., channels]
    batch, row, column, element = part.strides
    return as_strided(
        part,
        (result[0], result[1], result[2], *window.kernel_shape, part.shape[3]),
        (
            batch,
            row * window.strides[0],
            column * window.strides[1],
            row * window.dilations[0],
            column * window.dilations[1],
            element,
        ),
        writeable=False,
    )


def _bind_convolution(call: Call) -> Run:
    (x, weight, *bias), (out,), (matrix, *copy) = call.inputs, call.outputs, call.scratch
    window = Window.of(call.parameters)
    steps: list[Run] = [bind_padded_copy(x, copy[0], window, 0.0)] if copy else []
    image = copy[0][:, :, 0] if copy else x
    groups, depth, group_outputs = weight.shape
    group_channels = x.shape[3] // groups
    views = [
        _window_view(image, window, out.shape, slice(group * group_channels, (group + 1) * group_channels))
        for group in range(groups)
    ]
    for images, rows in _output_blocks(out.shape, depth * 4):
        count = _block_rows((images, rows), out.shape)
        target, columns = out[images, rows].reshape(count, -1), matrix[:count]
        for group, view in enumerate(views):
            source = view[images, rows]
            product = target[:, group * group_outputs : (group + 1) * group_outputs]
            steps.append(partial(np.copyto, columns.reshape(source.shape), source))
            steps.append(partial(np.matmul, columns, weight[group], product))
        steps += bind_epilogue(target, bias[0] if bias else None, call.finish)
    return in_sequence(steps)


CONVOLUTION_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "convolution": Kernel(bind=_bind_convolution, scratch=_convolution_scratch, fuses=True),
        "pointwise_convolution": Kernel(bind=_bind_pointwise, fuses=True),
        "scoring_convolution": Kernel(bind=_bind_scoring, scratch=_scoring_scratch, fuses=True),
    }
)
"""Rows of the kernel table."""
