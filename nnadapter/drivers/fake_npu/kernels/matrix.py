"""Matrix products with fused bias and activation, and linear algebra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Finish, NumpyKernel, named_kernels
from nnadapter.ir.deferred_arrays import unpacked_weight
from nnadapter.ir.operand import Array


def finish_rows(rows: Array, bias: Array | None, finish: Finish | None) -> None:
    """Add bias [N] and apply the activation to contiguous rows [M, N], in place."""
    if bias is not None:
        np.add(rows, bias, rows)
    if finish is not None:
        finish(rows)


def fully_connected(
    out: Array, x: Array, weight: Array, bias: Array | None = None, *, finish: Finish | None = None
) -> None:
    """Multiply x [..., K] by the transpose of weight [N, K], and add bias [N]."""
    outputs, depth = weight.shape
    np.matmul(x.reshape(-1, depth), weight.T, out.reshape(-1, outputs))
    finish_rows(out, bias, finish)


def matmul(
    out: Array, x: Array, y: Array, *, transpose_x: bool, transpose_y: bool, finish: Finish | None = None
) -> None:
    """Multiply stacks of matrices."""
    if transpose_x:
        x = _transposed(x)
    elif y.ndim == 2 and x.ndim > 2:
        # one product instead of one per matrix
        x = x.reshape(-1, x.shape[-1])
        out = out.reshape(len(x), -1)
    if transpose_y:
        y = _transposed(y)
    np.matmul(x, y, out)
    if finish is not None:
        finish(out)


def _transposed(matrices: Array) -> Array:
    return matrices if matrices.ndim < 2 else matrices.swapaxes(-1, -2)


def einsum(out: Array, *factors: Array, equation: str) -> None:
    """Evaluate an einsum equation."""
    path = False if len(factors) == 1 else "optimal" if len(factors) <= 4 else "greedy"
    np.einsum(equation, *factors, out=out, optimize=path)


def _unpack_weight(out: Array, weight: Array, scale: Array, zero_point: Array | None = None, **parameters: Any) -> None:
    np.copyto(out, unpacked_weight(weight, scale, zero_point, **parameters))


KERNELS: Mapping[str, NumpyKernel] = {
    **named_kernels(einsum, _unpack_weight),
    **named_kernels(fully_connected, matmul, fuses=True),
    "determinant": NumpyKernel(lambda out, x: np.copyto(out, np.linalg.det(x))),
    "triangle": NumpyKernel(lambda out, x, upper, k: np.copyto(out, np.triu(x, k) if upper else np.tril(x, k)), (0,)),
}
