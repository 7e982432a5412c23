"""Kernels of small linear algebra: triangles, determinants, sums of products by an equation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run


def _bind_triangle(call: Call) -> Run:
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


def _bind_determinant(call: Call) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    return lambda: np.copyto(out, np.linalg.det(x))


def _bind_einsum(call: Call) -> Run:
    """The order in which more than two factors are multiplied is chosen once, for these sizes."""
    inputs, (out,), equation = call.inputs, call.outputs, call.parameters["equation"]
    if len(inputs) == 1:
        return lambda: np.einsum(equation, *inputs, out=out)
    path, _ = np.einsum_path(equation, *inputs, optimize="optimal" if len(inputs) <= 4 else "greedy")
    return lambda: np.einsum(equation, *inputs, out=out, optimize=path)


LINEAR_ALGEBRA_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "determinant": Kernel(bind=_bind_determinant),
        "einsum": Kernel(bind=_bind_einsum),
        "triangle": Kernel(bind=_bind_triangle, in_place=(0,)),
    }
)
"""Rows of the kernel table."""
