"""Depthwise convolution over images [N, H, W, C]: every channel has its own filter, [C, 1, kH, kW]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run
from nnadapter.drivers.fake_npu.kernels.matrix import apply_epilogue
from nnadapter.drivers.fake_npu.kernels.windows import Window, bind_padded_copy
from nnadapter.ir.operand import Array


def pack_depthwise_filter(weight: Array, width: int) -> Array:
    """[C, 1, kH, kW] -> [kH * kW, width * C]: every tap's weights repeated for a whole row of outputs."""
    taps = weight.reshape(weight.shape[0], -1).T
    return np.ascontiguousarray(np.tile(taps, (1, width)))


def _bind_depthwise(call: Call) -> Run:
    """Every channel has its own filter: rows of outputs are sums of products of whole rows."""
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    window, finish = Window.of(call.parameters), call.finish
    spare, copy = _depthwise_buffers(call, window.strides[1])
    prepare = bind_padded_copy(x, copy, window, 0.0) if copy is not None else None
    image = x[:, :, None] if copy is None else copy
    factors = weight.reshape(*window.kernel_shape, -1)
    added = bias[0] if bias else None
    pieces = []
    for number in range(out.shape[0]):
        for rows in blocks(out.shape[1], _depthwise_rows(out.shape)):
            target = out[number, rows].reshape(rows.stop - rows.start, -1)
            pieces.append((_row_terms(image[number], factors, window, out.shape, rows), target))

    def run() -> None:
        if prepare is not None:
            prepare()
        for (first, *others), target in pieces:
            np.einsum(_SUM_OVER_TAPS, *first, out=target)
            for term in others:
                partial = spare[: target.shape[0]]
                np.einsum(_SUM_OVER_TAPS, *term, out=partial)
                np.add(target, partial, target)
            apply_epilogue(target, added, finish)

    return run


_SUM_OVER_TAPS = "ijre,ije->re"
"""Row and column of the tap, row and element of the outputs. One pass per tap: multiply and add at once."""


def _depthwise_rows(result: tuple[int, ...]) -> int:
    """Rows of outputs that are made at once: as many as stay in cache for bias and activation."""
    return max(1, min(result[1], 2 * BLOCK_ELEMENTS // (result[2] * result[3])))


def _depthwise_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """With a horizontal stride, one block of partial sums; then the padded copy if there is one."""
    window, image, result = Window.of(parameters), inputs[0].dimensions, outputs[0].dimensions
    phases = window.strides[1]
    needed = []
    if phases > 1:
        needed.append(TensorType("float32", (_depthwise_rows(result), result[2] * result[3])))
    if window.needs_copy(image, result, phases):
        needed.append(TensorType("float32", window.copy_dimensions(image, result, phases)))
    return tuple(needed)


def _depthwise_buffers(call: Call, phases: int) -> tuple[Array, Array | None]:
    """The partial sums (any array where there are none), and the padded copy."""
    if phases > 1:
        return call.scratch[0], call.scratch[1]
    return call.outputs[0], call.scratch[0] if call.scratch else None


def _row_terms(
    image: Array, factors: Array, window: Window, result: tuple[int, ...], rows: slice
) -> list[tuple[Array, Array]]:
    """Pairs whose sums of products over all taps, added up, are a block of output rows.

    Args:
        image: [rows, phases, columns, C], as `windows` describes it.
        factors: [kH, kW, W * C].
        window: the filter's geometry.
        result: dimensions of all outputs, [N, H, W, C].
        rows: the output rows of the block.

    Returns:
        Per phase: what the taps read, [kH, taps, rows, W * C], and their weights, [kH, taps, W * C].
    """
    line, _, column, element = image.strides
    phases = image.shape[1]
    # Taps that are this many columns apart read from the same phase.
    period = phases // gcd(phases, window.dilations[1])
    terms = []
    for first in range(min(period, window.kernel_shape[1])):
        weights = factors[:, first::period]
        shift, phase = divmod(first * window.dilations[1], phases)
        reads = as_strided(
            image[rows.start * window.strides[0] :, phase, shift:],
            (*weights.shape[:2], rows.stop - rows.start, weights.shape[2]),
            (
                line * window.dilations[0],
                column * (period * window.dilations[1] // phases),
                line * window.strides[0],
                element,
            ),
            writeable=False,
        )
        terms.append((reads, weights))
    return terms


DEPTHWISE_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {"depthwise_convolution": Kernel(bind=_bind_depthwise, scratch=_depthwise_scratch, fuses=True)}
)
"""Rows of the kernel table."""
