"""Kernels that relate each element to its neighbors along axes: softmax, and normalizations by means and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.drivers.fake_npu.kernels.summation import bind_summation, partial_sums, reduced
from nnadapter.ir.operand import Array

_BLOCK = 2 * BLOCK_ELEMENTS
"""Elements of one block of rows."""


def _rows(dimensions: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """[outer, axis, inner], or [outer, axis] where nothing lies behind the axis."""
    outer, inner = prod(dimensions[:axis]), prod(dimensions[axis + 1 :])
    return (outer, dimensions[axis]) if inner == 1 else (outer, dimensions[axis], inner)


def _row_block(rows: tuple[int, ...]) -> int:
    return max(1, min(rows[0], _BLOCK // prod(rows[1:])))


def _softmax_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """One number for every row of a block: its maximum, then its sum."""
    rows = _rows(outline.inputs[0].dimensions, outline.parameters["axis"])
    return (TensorType(outline.inputs[0].dtype, (_row_block(rows), 1, *rows[2:])),)


def _bind_softmax(call: KernelArguments) -> Run:
    (x,), (out,), (extreme,) = call.inputs, call.outputs, call.scratch
    dimensions = _rows(x.shape, call.parameters["axis"])
    x, out = x.reshape(dimensions), out.reshape(dimensions)
    pieces = [
        (x[rows], out[rows], extreme[: rows.stop - rows.start]) for rows in blocks(dimensions[0], extreme.shape[0])
    ]

    def run() -> None:
        for source, target, edge in pieces:
            np.maximum.reduce(source, axis=1, keepdims=True, out=edge)
            np.subtract(source, edge, target)
            np.exp(target, target)
            np.add.reduce(target, axis=1, keepdims=True, out=edge)
            np.divide(target, edge, target)

    return run


def _bind_log_softmax(call: KernelArguments) -> Run:
    """The logarithm of softmax: x - max - log(sum(exp(x - max)))."""
    (x,), (out,), (edge, shifted) = call.inputs, call.outputs, call.scratch
    dimensions = _rows(x.shape, call.parameters["axis"])
    x, out, shifted = x.reshape(dimensions), out.reshape(dimensions), shifted.reshape(dimensions)

    def run() -> None:
        np.maximum.reduce(x, axis=1, keepdims=True, out=edge)
        np.subtract(x, edge, shifted)
        np.exp(shifted, out)
        np.add.reduce(out, axis=1, keepdims=True, out=edge)
        np.log(edge, edge)
        np.subtract(shifted, edge, out)

    return run


def _log_softmax_scratch(outline: Outline) -> tuple[TensorType, ...]:
    rows = _rows(outline.inputs[0].dimensions, outline.parameters["axis"])
    return TensorType(outline.inputs[0].dtype, (rows[0], 1, *rows[2:])), outline.outputs[0]


def _layer_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Mean, then deviation, of every row of a block."""
    depth = prod(outline.inputs[0].dimensions[outline.parameters["axis"] :])
    rows = _row_block((outline.inputs[0].size // depth, depth))
    return TensorType(outline.inputs[0].dtype, (rows,)), TensorType(outline.inputs[0].dtype, (rows,))


def _bind_layer(call: KernelArguments) -> Run:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over all axes from `axis` on, block by block of rows."""
    (x, scale, *bias), (out,), (means, deviations) = call.inputs, call.outputs, call.scratch
    axis, epsilon = call.parameters["axis"], call.parameters["epsilon"]
    depth = prod(x.shape[axis:])
    x, out = x.reshape(-1, depth), out.reshape(-1, depth)
    normalized = call.inputs[0].shape[axis:]
    # Scale and bias may be computed after this is bound: they are spread over views, not copied into one row.
    pieces = [
        (
            x[rows],
            out[rows],
            out[rows].reshape(-1, *normalized),
            means[: rows.stop - rows.start],
            deviations[: rows.stop - rows.start],
        )
        for rows in blocks(x.shape[0], means.shape[0])
    ]

    def run() -> None:
        for source, target, spread, mean, deviation in pieces:
            np.add.reduce(source, axis=1, out=mean)
            np.divide(mean, depth, mean)
            np.subtract(source, mean[:, None], target)
            np.einsum("rd,rd->r", target, target, out=deviation)
            np.divide(deviation, depth, deviation)
            np.add(deviation, epsilon, deviation)
            np.sqrt(deviation, deviation)
            np.divide(target, deviation[:, None], target)
            np.multiply(spread, scale, spread)
            if bias:
                np.add(spread, bias[0], spread)

    return run


def _instance_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The squared distances, mean and deviation of every channel of every image, then what summing takes."""
    type_, axes = outline.inputs[0], outline.parameters["axes"]
    return type_, reduced(type_, axes), reduced(type_, axes), *partial_sums(type_, axes)


def _bind_centering(
    call: KernelArguments, mean: Array, total: Array, axes: tuple[int, ...], part: Sequence[Array]
) -> Run:
    """The output becomes x - mean over `axes`; `total`, which may be `mean`, the sum of its squares."""
    x, out, squares, share = call.inputs[0], call.outputs[0], call.scratch[0], mean.size / call.inputs[0].size
    add, add_squares = bind_summation(x, mean, axes, part), bind_summation(squares, total, axes, part)

    def run() -> None:
        add()
        np.multiply(mean, share, mean)
        np.subtract(x, mean, out)
        np.multiply(out, out, squares)
        add_squares()

    return run


def _bind_instance(call: KernelArguments) -> Run:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, mean and variance over `axes`, one per channel."""
    (x, scale, bias), (out,), (_, mean, deviation, *part) = call.inputs, call.outputs, call.scratch
    axes, epsilon = tuple(call.parameters["axes"]), call.parameters["epsilon"]
    share = mean.size / x.size
    center = _bind_centering(call, mean, deviation, axes, part)
    channels = [1] * x.ndim
    channels[call.parameters["channel_axis"]] = scale.size
    scale, bias = scale.reshape(channels), bias.reshape(channels)

    def run() -> None:
        center()
        np.multiply(deviation, share, deviation)
        np.add(deviation, epsilon, deviation)
        np.sqrt(deviation, deviation)
        np.divide(scale, deviation, deviation)
        np.multiply(out, deviation, out)
        np.add(out, bias, out)

    return run


def _bind_local_response(call: KernelArguments) -> Run:
    """ONNX's LRN: x / (bias + alpha / size * sum of squares of the `size` channels around)^beta."""
    (x,), (out,), (squares, total) = call.inputs, call.outputs, call.scratch
    size, axis = call.parameters["size"], call.parameters["channel_axis"]
    alpha, beta, bias = (call.parameters[name] for name in ("alpha", "beta", "bias"))
    squares, total = np.moveaxis(squares, axis, 0), np.moveaxis(total, axis, 0)
    x, out = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    channels = x.shape[0]
    # Channel c sums squares of c - (size - 1) // 2 to c + size // 2.
    shifts = [shift for shift in range(-((size - 1) // 2), size // 2 + 1) if shift and abs(shift) < channels]
    pairs = [
        (total[max(0, -shift) : channels - max(0, shift)], squares[max(0, shift) : channels - max(0, -shift)])
        for shift in shifts
    ]

    def run() -> None:
        np.multiply(x, x, squares)
        np.copyto(total, squares)
        for target, source in pairs:
            np.add(target, source, target)
        np.multiply(total, alpha / size, total)
        np.add(total, bias, total)
        np.power(total, -beta, total)
        np.multiply(x, total, out)

    return run


def _rms_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The norm of every row."""
    return (TensorType(outline.inputs[0].dtype, (prod(outline.inputs[0].dimensions[: outline.parameters["axis"]]),)),)


def _bind_rms(call: KernelArguments) -> Run:
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


def _lp_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Absolute values or squares, and their sums."""
    return outline.inputs[0], reduced(outline.inputs[0], (outline.parameters["axis"],))


def _bind_lp(call: KernelArguments) -> Run:
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


def _mvn_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The squared distances, their means, and what summing takes."""
    type_, axes = outline.inputs[0], outline.parameters["axes"]
    return type_, reduced(type_, axes), *partial_sums(type_, axes)


def _bind_mvn(call: KernelArguments) -> Run:
    """(x - mean) / (sqrt(mean((x - mean)^2)) + epsilon), means over `axes`."""
    (x,), (out,), (_, mean, *part) = call.inputs, call.outputs, call.scratch
    axes, epsilon, share = call.parameters["axes"], call.parameters["epsilon"], mean.size / x.size
    center = _bind_centering(call, mean, mean, axes, part)

    def run() -> None:
        center()
        np.multiply(mean, share, mean)
        np.sqrt(mean, mean)
        np.add(mean, epsilon, mean)
        np.divide(out, mean, out)

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "instance_normalization": NumpyKernel(bind=_bind_instance, scratch=_instance_scratch, in_place=(0,)),
    "layer_normalization": NumpyKernel(bind=_bind_layer, scratch=_layer_scratch, in_place=(0,)),
    "local_response_normalization": NumpyKernel(
        bind=_bind_local_response, scratch=lambda outline: (outline.inputs[0], outline.inputs[0]), in_place=(0,)
    ),
    "log_softmax": NumpyKernel(bind=_bind_log_softmax, scratch=_log_softmax_scratch, in_place=(0,)),
    "softmax": NumpyKernel(bind=_bind_softmax, scratch=_softmax_scratch, in_place=(0,)),
    "lp_normalization": NumpyKernel(bind=_bind_lp, scratch=_lp_scratch, in_place=(0,)),
    "mean_variance_normalization": NumpyKernel(bind=_bind_mvn, scratch=_mvn_scratch, in_place=(0,)),
    "rms_normalization": NumpyKernel(bind=_bind_rms, scratch=_rms_scratch, in_place=(0,)),
}
"""Rows of the kernel table."""
