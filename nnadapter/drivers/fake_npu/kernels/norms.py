"""Normalizations by a norm: root mean square, sums of absolute values or squares, deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run
from nnadapter.drivers.fake_npu.kernels.summation import bind_summation, partial_sums


def _rms_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The norm of every row."""
    return (TensorType(inputs[0].dtype, (prod(inputs[0].dimensions[: parameters["axis"]]),)),)


def _bind_rms(call: Call) -> Run:
    """Computes x / sqrt(mean(x^2) + epsilon) * scale over all axes from `axis` on, block by block of rows."""
    (x, scale), (out,), (norms,) = call.inputs, call.outputs, call.scratch
    axis, epsilon = call.parameters["axis"], call.parameters["epsilon"]
    normalized = x.shape[axis:]
    depth = prod(normalized)
    rows, results = x.reshape(-1, depth), out.reshape(-1, depth)
    # A scale that differs between rows multiplies the whole result at the end.
    per_row = any(size != 1 for size in scale.shape[: max(0, scale.ndim - len(normalized))])
    # A scale may be computed after this is bound: it is spread over views, not copied into one row.
    factors = 1 if per_row else scale.reshape(scale.shape[max(0, scale.ndim - len(normalized)) :])
    pieces = [
        (rows[some], results[some], results[some].reshape(-1, *normalized), norms[some])
        for some in blocks(len(rows), max(1, BLOCK_ELEMENTS // depth))
    ]

    def run() -> None:
        for source, target, spread, norm in pieces:
            np.einsum("rd,rd->r", source, source, out=norm)
            np.divide(norm, depth, norm)
            np.add(norm, epsilon, norm)
            np.sqrt(norm, norm)
            np.divide(source, norm[:, None], target)
            np.multiply(spread, factors, spread)
        if per_row:
            np.multiply(out, scale, out)

    return run


def _lp_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """Absolute values or squares, and their sums."""
    dimensions = list(inputs[0].dimensions)
    dimensions[parameters["axis"]] = 1
    return inputs[0], TensorType(inputs[0].dtype, tuple(dimensions))


def _bind_lp(call: Call) -> Run:
    """Computes x / norm(x) along an axis; zeros have no direction and stay zeros."""
    (x,), (out,), (terms, norm) = call.inputs, call.outputs, call.scratch
    axis, squares = call.parameters["axis"], call.parameters["p"] == 2

    def run() -> None:
        if squares:
            np.multiply(x, x, terms)
        else:
            np.absolute(x, terms)
        np.add.reduce(terms, axis=axis, keepdims=True, out=norm)
        if squares:
            np.sqrt(norm, norm)
        np.copyto(norm, 1, where=norm == 0)
        np.divide(x, norm, out)

    return run


def _mvn_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The squared distances, their means, and what summing takes."""
    axes = parameters["axes"]
    dimensions = tuple(1 if axis in axes else size for axis, size in enumerate(inputs[0].dimensions))
    return inputs[0], TensorType(inputs[0].dtype, dimensions), *partial_sums(inputs[0], axes)


def _bind_mvn(call: Call) -> Run:
    """(x - mean) / (sqrt(mean((x - mean)^2)) + epsilon), means over `axes`."""
    (x,), (out,), (squares, mean, *part) = call.inputs, call.outputs, call.scratch
    axes, epsilon, share = call.parameters["axes"], call.parameters["epsilon"], mean.size / x.size
    add, add_squares = bind_summation(x, mean, axes, part), bind_summation(squares, mean, axes, part)

    def run() -> None:
        add()
        np.multiply(mean, share, mean)
        np.subtract(x, mean, out)
        np.multiply(out, out, squares)
        add_squares()
        np.multiply(mean, share, mean)
        np.sqrt(mean, mean)
        np.add(mean, epsilon, mean)
        np.divide(out, mean, out)

    return run


NORM_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "lp_normalization": Kernel(bind=_bind_lp, scratch=_lp_scratch, in_place=(0,)),
        "mean_variance_normalization": Kernel(bind=_bind_mvn, scratch=_mvn_scratch, in_place=(0,)),
        "rms_normalization": Kernel(bind=_bind_rms, scratch=_rms_scratch, in_place=(0,)),
    }
)
"""Rows of the kernel table."""
