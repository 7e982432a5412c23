"""Convolution by matrix product: the windows of a block of outputs become the rows of one matrix.

Images are [N, H, W, C]. The filter [O, C / group, kH, kW] is packed at compile time as [group, kH * kW * C / group,
O / group], so that a window's elements lie in the order in which they are copied: row, column, channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, GEMM_BLOCK_BYTES, gemm_rows
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run
from nnadapter.drivers.fake_npu.kernels.matrix import apply_epilogue, bind_rows
from nnadapter.drivers.fake_npu.kernels.windows import Window, bind_padded_copy
from nnadapter.ir.operand import Array


def pack_filter(weight: Array, group: int) -> Array:
    """[O, C / group, kH, kW] -> [group, kH * kW * C / group, O / group], contiguous."""
    outputs, channels, height, width = weight.shape
    grouped = weight.reshape(group, outputs // group, channels, height, width)
    return np.ascontiguousarray(grouped.transpose(0, 3, 4, 2, 1)).reshape(group, -1, outputs // group)


def pack_depthwise_filter(weight: Array, width: int) -> Array:
    """[C, 1, kH, kW] -> [kH * kW, width * C]: every tap's weights repeated for a whole row of outputs."""
    taps = weight.reshape(weight.shape[0], -1).T
    return np.ascontiguousarray(np.tile(taps, (1, width)))


def pack_bias(bias: Array, result: tuple[int, ...]) -> Array:
    """[O] repeated for a row of outputs [N, H, W, O] where it is short: a longer run adds faster."""
    return np.tile(bias, result[2]) if bias.size < 256 and bias.size * result[2] <= BLOCK_ELEMENTS else bias


def _bind_pointwise(call: Call) -> Run:
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    rows, result = x.reshape(-1, x.shape[3]), out.reshape(-1, out.shape[3])
    return bind_rows(rows, weight[0], bias[0] if bias else None, result, call.finish)


def _output_blocks(result: tuple[int, ...], row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cut outputs [N, H, W, C] into blocks of whole rows, or of whole images where these are small."""
    images, height, width = result[:3]
    limit = gemm_rows(row_bytes)
    images_at_once = max(1, limit // (height * width))
    rows_at_once = height if images_at_once > 1 else max(1, min(height, limit // width))
    for image in range(0, images, images_at_once):
        for row in range(0, height, rows_at_once):
            yield slice(image, min(image + images_at_once, images)), slice(row, min(row + rows_at_once, height))


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
    window, finish = Window.of(call.parameters), call.finish
    prepare = bind_padded_copy(x, copy[0].reshape(copy[0].shape), window, 0.0) if copy else None
    image = copy[0][:, :, 0] if copy else x
    added = bias[0] if bias else None
    groups, depth, group_outputs = weight.shape
    group_channels = x.shape[3] // groups
    views = [
        _window_view(image, window, out.shape, slice(group * group_channels, (group + 1) * group_channels))
        for group in range(groups)
    ]
    pieces = []
    for images, rows in _output_blocks(out.shape, depth * 4):
        count = _block_rows((images, rows), out.shape)
        target = out[images, rows].reshape(count, -1)
        columns = matrix[:count]
        parts = [
            (
                view[images, rows],
                columns.reshape(view[images, rows].shape),
                columns,
                weight[group],
                target[:, group * group_outputs : (group + 1) * group_outputs],
            )
            for group, view in enumerate(views)
        ]
        pieces.append((parts, target))

    def run() -> None:
        if prepare is not None:
            prepare()
        for parts, target in pieces:
            for source, windows, columns, factor, product in parts:
                np.copyto(windows, source)
                np.matmul(columns, factor, product)
            apply_epilogue(target, added, finish)

    return run


def _depthwise_rows(result: tuple[int, ...]) -> int:
    """Rows of outputs that are accumulated at once: as many as stay in cache with their products."""
    return max(1, min(result[1], 2 * BLOCK_ELEMENTS // (result[2] * result[3])))


def _depthwise_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The products of one tap with one block of rows, then the padded copy if there is one."""
    window, image, result = Window.of(parameters), inputs[0].dimensions, outputs[0].dimensions
    needed = [TensorType("float32", (_depthwise_rows(result), result[2] * result[3]))]
    phases = window.strides[1]
    if window.needs_copy(image, result, phases):
        needed.append(TensorType("float32", window.copy_dimensions(image, result, phases)))
    return tuple(needed)


def _bind_depthwise(call: Call) -> Run:
    """Every channel has its own filter: one multiply-add per tap over whole rows of outputs."""
    (x, weight, *bias), (out,), (products, *copy) = call.inputs, call.outputs, call.scratch
    window, finish = Window.of(call.parameters), call.finish
    prepare = bind_padded_copy(x, copy[0], window, 0.0) if copy else None
    image = copy[0] if copy else x[:, :, None]
    added = bias[0] if bias else None
    pieces = [
        _depthwise_block(image, weight, window, out[number, start : start + products.shape[0]], products, number, start)
        for number in range(out.shape[0])
        for start in range(0, out.shape[1], products.shape[0])
    ]

    def run() -> None:
        if prepare is not None:
            prepare()
        for (source, factors), others, product, target in pieces:
            np.multiply(source, factors, target)
            for source, factors in others:
                np.multiply(source, factors, product)
                np.add(target, product, target)
            apply_epilogue(target, added, finish)

    return run


_Term = tuple[Array, Array]
"""What one tap reads, [rows, W * C], and its weights, [W * C]."""


def _depthwise_block(
    image: Array, weight: Array, window: Window, out: Array, products: Array, number: int, start: int
) -> tuple[_Term, list[_Term], Array, Array]:
    """The terms whose sum is one block of rows `out` [rows, W, C] of image `number`, from output row `start` on."""
    rows, width, channels = out.shape
    phases = image.shape[2]
    terms = []
    for tap, (row, column) in enumerate(window.taps()):
        first = start * window.strides[0] + row * window.dilations[0]
        lines = image[number, first : first + (rows - 1) * window.strides[0] + 1 : window.strides[0]]
        shift, phase = divmod(column * window.dilations[1], phases)
        run = lines[:, phase, shift : shift + width]
        terms.append((run.reshape(rows, width * channels), weight[tap]))
    return terms[0], terms[1:], products[:rows], out.reshape(rows, width * channels)


def _rows_of_inputs(image: tuple[int, ...], row_bytes: int) -> int:
    """Input rows whose products with a transposed filter fit one block."""
    return max(1, min(image[1], GEMM_BLOCK_BYTES // (row_bytes * image[2])))


def _transposed_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The products of one block of input rows with every tap of one group's filter."""
    image, columns = inputs[0].dimensions, inputs[1].dimensions[2]
    return (TensorType("float32", (_rows_of_inputs(image, columns * 4) * image[2], columns)),)


def pack_transposed_filter(weight: Array, group: int) -> Array:
    """[C, O / group, kH, kW] -> [group, C / group, kH * kW * O / group], contiguous."""
    channels, outputs, height, width = weight.shape
    grouped = weight.reshape(group, channels // group, outputs, height, width)
    return np.ascontiguousarray(grouped.transpose(0, 1, 3, 4, 2)).reshape(group, channels // group, -1)


def _bind_transposed(call: Call) -> Run:
    """Each input pixel times the filter, added where the window lies in the output."""
    (x, weight, *bias), (out,), (products,) = call.inputs, call.outputs, call.scratch
    window, finish = Window.of(call.parameters), call.finish
    added = bias[0] if bias else None
    groups, group_channels, columns = weight.shape
    block_rows = products.shape[0] // x.shape[2]
    pieces = []
    for number in range(x.shape[0]):
        for start in range(0, x.shape[1], block_rows):
            block = x[number, start : start + block_rows]
            pixels = block.reshape(-1, block.shape[2])
            product = products[: pixels.shape[0]]
            for group in range(groups):
                part = pixels[:, group * group_channels : (group + 1) * group_channels]
                outputs = columns // (window.kernel_shape[0] * window.kernel_shape[1])
                target = out[number, :, :, group * outputs : (group + 1) * outputs]
                values = product.reshape(*block.shape[:2], *window.kernel_shape, outputs)
                pieces.append((part, weight[group], product, _overlaps(values, target, window, start)))

    def run() -> None:
        out[...] = 0
        for pixels, factor, product, additions in pieces:
            np.matmul(pixels, factor, product)
            for target, values in additions:
                np.add(target, values, target)
        apply_epilogue(out, added, finish)

    return run


def _overlaps(values: Array, out: Array, window: Window, start: int) -> list[tuple[Array, Array]]:
    """For every tap, where its products go: pairs of views of `out` [H, W, O] and `values` [h, w, kH, kW, O].

    Input row r contributes with tap i to output row (start + r) * stride + i * dilation - top; what falls outside
    is left out.
    """
    found = []
    for row, column in window.taps():
        vertical = _landing(
            values.shape[0],
            out.shape[0],
            window.strides[0],
            start * window.strides[0] + row * window.dilations[0] - window.pads[0],
        )
        horizontal = _landing(
            values.shape[1], out.shape[1], window.strides[1], column * window.dilations[1] - window.pads[1]
        )
        target = out[vertical[1], horizontal[1]]
        if target.size:
            found.append((target, values[vertical[0], horizontal[0], row, column]))
    return found


def _landing(count: int, size: int, stride: int, offset: int) -> tuple[slice, slice]:
    """The inputs, of `count`, that land inside an axis of `size` at index * stride + offset, and where."""
    first = min(max(0, -(offset // stride)), count)
    last = max(first, min(count, -((offset - size) // stride)))
    start = first * stride + offset
    return slice(first, last), slice(
        max(start, 0), max(start, 0) + max(0, (last - first - 1) * stride + 1) * (last > first), stride
    )


CONVOLUTION_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "convolution": Kernel(bind=_bind_convolution, scratch=_convolution_scratch, fuses=True),
        "depthwise_convolution": Kernel(bind=_bind_depthwise, scratch=_depthwise_scratch, fuses=True),
        "pointwise_convolution": Kernel(bind=_bind_pointwise, fuses=True),
        "transposed_convolution": Kernel(bind=_bind_transposed, scratch=_transposed_scratch, fuses=True),
    }
)
"""Rows of the kernel table."""
