"""Kernels that make tensors from next to nothing, or from the bits of another."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run


def _bind_range(call: Call) -> Run:
    """The result start + i delta, in the result's type."""
    (start, delta), (out,) = call.inputs, call.outputs
    # Positions beyond a narrow type wrap around in it, and so do products and sums with them.
    positions = np.arange(out.size).astype(out.dtype)

    def run() -> None:
        np.multiply(positions, delta, out)
        np.add(out, start, out)

    return run


def _bind_diagonal(call: Call) -> Run:
    """Ones on the k-th diagonal of a matrix [N, M], zeros elsewhere."""
    (out,), k = call.outputs, call.parameters["k"]
    rows, columns = out.shape
    first_row, first_column = max(0, -k), max(0, k)
    length = max(0, min(rows - first_row, columns - first_column))
    start = first_row * columns + first_column
    ones = out.reshape(-1)[start : start + length * (columns + 1) : columns + 1]

    def run() -> None:
        out[...] = 0
        ones[...] = 1

    return run


def _bind_bit_cast(call: Call) -> Run:
    """The same bits; a byte becomes true unless it is 0, because no other byte is a truth value."""
    (x,), (out,) = call.inputs, call.outputs
    if out.dtype.kind == "b":
        return lambda: np.not_equal(x, 0, out=out)
    return lambda: np.copyto(out, x.view(out.dtype))


GENERATION_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "bit_cast": Kernel(bind=_bind_bit_cast),
        "diagonal": Kernel(bind=_bind_diagonal),
        "range": Kernel(bind=_bind_range),
    }
)
"""Rows of the kernel table."""
