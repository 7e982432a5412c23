"""Matrix kernels: products, whose bias and activation come while a block of rows is in cache, and linear algebra."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.kernels.blocks import even_blocks, gemm_rows
from nnadapter.drivers.fake_npu.kernels.kernel import Finish, KernelArguments, NumpyKernel, Run, in_sequence
from nnadapter.ir.deferred_arrays import unpacked_weight
from nnadapter.ir.operand import Array

_BIAS_RUN = 2048
"""About how many elements of a bias are added in one inner loop."""


def pack_bias(bias: Array) -> Array:
    """[O] -> [repeat * O], repeated where it is short: a longer run adds faster."""
    return np.tile(bias, max(1, _BIAS_RUN // max(bias.size, 1)))


def bind_rows(x: Array, weight: Array, bias: Array | None, out: Array, finish: Finish | None) -> Run:
    """Bind `out = finish(x @ weight + bias)`.

    Args:
        x: [M, K].
        weight: [K, N], in either memory order.
        bias: [N], or repeated as `pack_bias` does, or None.
        out: [M, N], contiguous.
        finish: the fused activation.
    """
    if bias is None and finish is None:
        return lambda: np.matmul(x, weight, out)
    steps: list[Run] = []
    for rows in even_blocks(x.shape[0], gemm_rows(max(out.shape[1], x.shape[1]) * out.itemsize)):
        steps.append(partial(np.matmul, x[rows], weight, out[rows]))
        steps += bind_epilogue(out[rows], bias, finish)
    return in_sequence(steps)


def bind_epilogue(block: Array, bias: Array | None, finish: Finish | None) -> list[Run]:
    """Bind what adds the bias to a contiguous block [..., N] and applies the activation, both in place.

    Args:
        block: whole rows of the result.
        bias: [N], or repeated as `pack_bias` does, or None.
        finish: the fused activation.
    """
    steps: list[Run] = []
    if bias is not None:
        flat = block.reshape(-1)
        whole = flat.size - flat.size % bias.size
        for part in (flat[:whole].reshape(-1, bias.size), flat[whole:]):
            if part.size:
                steps.append(partial(np.add, part, bias[: part.shape[-1]], part))
    return steps if finish is None else [*steps, finish(block)]


def _bind_fully_connected(call: KernelArguments) -> Run:
    """The input [..., K] times the transpose of weight [N, K], plus bias [N]."""
    (x, weight, *bias), (out,) = call.inputs, call.outputs
    rows = x.reshape(-1, weight.shape[1])
    return bind_rows(rows, weight.T, bias[0] if bias else None, out.reshape(-1, weight.shape[0]), call.finish)


def _bind_matmul(call: KernelArguments) -> Run:
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

    return in_sequence([partial(np.matmul, x, y, out), *bind_epilogue(out, None, finish)])


def _transposed(matrices: Array) -> Array:
    """Each matrix of a stack transposed; a vector stays as it is."""
    return matrices if matrices.ndim < 2 else matrices.swapaxes(-1, -2)


def _bind_triangle(call: KernelArguments) -> Run:
    """What lies beyond the diagonal is made zero; the rest is copied."""
    (x,), (out,), parameters = call.inputs, call.outputs, call.parameters
    upper, k = parameters["upper"], parameters["k"]
    rows, columns = (np.arange(size) for size in x.shape[-2:])
    distance = columns - rows[:, None]
    zero = out.dtype.type(0)
    gone = distance < k if upper else distance > k

    def run() -> None:
        np.copyto(out, x)
        np.copyto(out, zero, where=gone)

    return run


def _bind_determinant(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    return lambda: np.copyto(out, np.linalg.det(x))


def _bind_einsum(call: KernelArguments) -> Run:
    """The order in which more than two factors are multiplied is chosen once, for these sizes."""
    inputs, (out,), equation = call.inputs, call.outputs, call.parameters["equation"]
    if len(inputs) == 1:
        return lambda: np.einsum(equation, *inputs, out=out)
    path, _ = np.einsum_path(equation, *inputs, optimize="optimal" if len(inputs) <= 4 else "greedy")
    return lambda: np.einsum(equation, *inputs, out=out, optimize=path)


def _bind_unpack_weight(call: KernelArguments) -> Run:
    """The weight of MAT_MUL_N_BITS as reals, where it is not constant. Inputs: packed, scale, zero point if any."""
    (weight, scale, *zero_point), (out,) = call.inputs, call.outputs
    unpack = partial(unpacked_weight, weight, scale, zero_point[0] if zero_point else None, **call.parameters)
    return lambda: np.copyto(out, unpack())


KERNELS: Mapping[str, NumpyKernel] = {
    "fully_connected": NumpyKernel(bind=_bind_fully_connected, fuses=True),
    "matmul": NumpyKernel(bind=_bind_matmul, fuses=True),
    "determinant": NumpyKernel(bind=_bind_determinant),
    "einsum": NumpyKernel(bind=_bind_einsum),
    "triangle": NumpyKernel(bind=_bind_triangle, in_place=(0,)),
    "unpack_weight": NumpyKernel(bind=_bind_unpack_weight),
}
"""Rows of the kernel table."""
