"""Depthwise convolution over images [N, H, W, C]: every channel has its own filter, [C, 1, kH, kW]."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import gcd

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.copying import bind_padded_copy, copy_dimensions
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.drivers.fake_npu.kernels.matrix import bind_epilogue
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

_RUN_ELEMENTS = 1536
"""About how many elements one inner loop multiplies and adds: the taps' weights for them stay in a level-1 cache."""


def pack_depthwise_filter(weight: Array) -> Array:
    """[C, 1, kH, kW] -> [kH * kW, repeat * C]: every tap's weights for as many columns as fill one inner loop."""
    channels = weight.shape[0]
    taps = weight.reshape(channels, -1).T
    return np.ascontiguousarray(np.tile(taps, (1, depthwise_repeats(channels))))


def depthwise_repeats(channels: int) -> int:
    """How often the weights of a tap stand side by side in a packed filter."""
    return max(1, _RUN_ELEMENTS // channels)


def _column_blocks(width: int, most: int) -> list[tuple[slice, int]]:
    """Cut the columns of outputs into parts: which columns, and how many of them one inner loop takes."""
    if width <= most:
        return [(slice(0, width), width)]
    even = next((size for size in range(most, most // 2, -1) if width % size == 0), most)
    whole = width - width % even
    rest = [(slice(whole, width), width - whole)] if whole < width else []
    return [(slice(0, whole), even), *rest]


def _bind_depthwise(call: KernelArguments) -> Run:
    """Every channel has its own filter: rows of outputs are sums of products of runs of columns."""
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    window, finish = Window.of(call.parameters), call.finish
    spare, copy = _depthwise_buffers(call, window.strides[1])
    steps = [bind_padded_copy(x, copy, window, 0.0)] if copy is not None else []
    image = x[:, :, None] if copy is None else copy
    factors = weight.reshape(*window.kernel_shape, -1)
    columns = _column_blocks(out.shape[2], weight.shape[1] // out.shape[3])
    for number in range(out.shape[0]):
        for rows in blocks(out.shape[1], _depthwise_rows(out.shape)):
            target = out[number, rows]
            for part, size in columns:
                sums = target[:, part].reshape(target.shape[0], -1, size * out.shape[3])
                weights = factors[:, :, : sums.shape[2]]
                terms = _terms(image[number], weights, window, sums.shape, (rows.start, part.start))
                steps += _bind_sums(terms, sums, spare)
            steps += bind_epilogue(target, bias[0] if bias else None, finish)
    return in_sequence(steps)


def _bind_sums(terms: list[tuple[Array, Array]], out: Array, spare: Array) -> list[Run]:
    """The first term's sums of products go to `out`, those of the others are added; `spare` holds these meanwhile."""
    (reads, weights), *others = terms
    steps: list[Run] = [partial(np.einsum, _SUM_OVER_TAPS, reads, weights, out=out)]
    summand = spare.reshape(-1)[: out.size].reshape(out.shape)
    for reads, weights in others:
        steps.append(partial(np.einsum, _SUM_OVER_TAPS, reads, weights, out=summand))
        steps.append(partial(np.add, out, summand, out))
    return steps


_SUM_OVER_TAPS = "ijrbe,ije->rbe"
"""Row and column of the tap; row, block of columns, and element of the outputs. Multiplies and adds at once."""


def _depthwise_rows(result: tuple[int, ...]) -> int:
    """Rows of outputs that are made at once: as many as stay in cache for bias and activation."""
    return max(1, min(result[1], BLOCK_ELEMENTS // (result[2] * result[3])))


def _depthwise_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """With a horizontal stride, one block of partial sums; then the padded copy if there is one."""
    window, image, result = Window.of(outline.parameters), outline.inputs[0].dimensions, outline.outputs[0].dimensions
    phases = window.strides[1]
    needed = []
    if phases > 1:
        needed.append(TensorType(outline.inputs[0].dtype, (_depthwise_rows(result), result[2] * result[3])))
    copy = copy_dimensions(window, image, result, phases)
    if copy is not None:
        needed.append(TensorType(outline.inputs[0].dtype, copy))
    return tuple(needed)


def _depthwise_buffers(call: KernelArguments, phases: int) -> tuple[Array, Array | None]:
    """The partial sums (any array where there are none), and the padded copy."""
    if phases > 1:
        return call.scratch[0], call.scratch[1]
    return call.outputs[0], call.scratch[0] if call.scratch else None


def _terms(
    image: Array, factors: Array, window: Window, result: tuple[int, ...], start: tuple[int, int]
) -> list[tuple[Array, Array]]:
    """Pairs whose sums of products over all taps, added up, are a block of outputs.

    Args:
        image: [rows, phases, columns, C], as `windows` describes it.
        factors: [kH, kW, run], a run being the channels of some columns side by side.
        window: the filter's geometry.
        result: dimensions of the block, [rows, runs, run].
        start: the block's first row and first column.

    Returns:
        Per phase: what the taps read, [kH, taps, rows, runs, run], and their weights, [kH, taps, run].
    """
    line, _, column, element = image.strides
    phases, channels = image.shape[1], image.shape[3]
    # Taps that are this many columns apart read from the same phase.
    period = phases // gcd(phases, window.dilations[1])
    terms = []
    for first in range(min(period, window.kernel_shape[1])):
        weights = factors[:, first::period]
        shift, phase = divmod(first * window.dilations[1], phases)
        reads = as_strided(
            image[start[0] * window.strides[0] :, phase, start[1] + shift :],
            (*weights.shape[:2], *result),
            (
                line * window.dilations[0],
                column * (period * window.dilations[1] // phases),
                line * window.strides[0],
                column * (result[2] // channels),
                element,
            ),
            writeable=False,
        )
        terms.append((reads, weights))
    return terms


KERNELS: Mapping[str, NumpyKernel] = {
    "depthwise_convolution": NumpyKernel(bind=_bind_depthwise, scratch=_depthwise_scratch, fuses=True)
}
"""Rows of the kernel table."""
