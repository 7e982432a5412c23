"""Matrix kernels: products, with bias and activation applied while a block of rows is in cache."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.kernels.blocks import even_blocks, gemm_rows
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Finish, Kernel, Run
from nnadapter.ir.operand import Array


def bind_rows(x: Array, weight: Array, bias: Array | None, out: Array, finish: Finish | None) -> Run:
    """Bind `out = finish(x @ weight + bias)`.

    Args:
        x: [M, K].
        weight: [K, N], in either memory order.
        bias: [N] or None; or [R * N], a bias repeated R times, where R divides M: longer runs add faster.
        out: [M, N], contiguous.
        finish: the fused activation.
    """
    if bias is None and finish is None:
        return lambda: np.matmul(x, weight, out)
    repeat = 1 if bias is None else bias.size // out.shape[1]
    step = max(1, gemm_rows(max(out.shape[1], x.shape[1]) * out.itemsize) // repeat)
    pieces = [
        (x[part.start * repeat : part.stop * repeat], out[part.start * repeat : part.stop * repeat])
        for part in even_blocks(x.shape[0] // repeat, step)
    ]

    def run() -> None:
        for source, target in pieces:
            np.matmul(source, weight, target)
            apply_epilogue(target, bias, finish)

    return run


def apply_epilogue(block: Array, bias: Array | None, finish: Finish | None) -> None:
    """Add the bias to a contiguous block of rows and apply the activation, both in place."""
    if bias is not None:
        runs = block.reshape(-1, bias.size)
        np.add(runs, bias, runs)
    if finish is not None:
        finish(block)


def _bind_fully_connected(call: Call) -> Run:
    """The input [..., K] times the transpose of weight [N, K], plus bias [N]."""
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    rows = x.reshape(-1, weight.shape[1])
    return bind_rows(rows, weight.T, bias[0] if bias else None, out.reshape(-1, weight.shape[0]), call.finish)


def _bind_matmul(call: Call) -> Run:
    (x, y), (out,), finish = call.inputs, call.outputs, call.finish
    if call.parameters["transpose_x"]:
        x = _transposed(x)
    elif y.ndim == 2 and x.ndim > 2:
        # One large product instead of one per matrix of the stack.
        x = x.reshape(-1, x.shape[-1])
        out = out.reshape(x.shape[0], -1)
    if call.parameters["transpose_y"]:
        y = _transposed(y)
    if x.ndim == y.ndim == out.ndim == 2:
        return bind_rows(x, y, None, out, finish)

    def run() -> None:
        np.matmul(x, y, out)
        if finish is not None:
            finish(out)

    return run


def _transposed(matrices: Array) -> Array:
    """Each matrix of a stack transposed; a vector stays as it is."""
    return matrices if matrices.ndim < 2 else matrices.swapaxes(-1, -2)


MATRIX_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "fully_connected": Kernel(bind=_bind_fully_connected, fuses=True),
        "matmul": Kernel(bind=_bind_matmul, fuses=True),
    }
)
"""Rows of the kernel table."""
