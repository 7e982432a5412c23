"""Losses of classifications."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.ir.operand import Array


def _scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Which targets count, the classes to look up, losses and weights."""
    dimensions = outline.inputs[1].dimensions
    return (
        TensorType("bool", dimensions),
        TensorType("int64", dimensions),
        TensorType(outline.inputs[0].dtype, dimensions),
        TensorType(outline.inputs[0].dtype, dimensions),
    )


def _bind_likelihood(call: KernelArguments) -> Run:
    """Minus the log-probability of the target, times its class's weight; zero where the target is ignored."""
    (x, target, *weight), (out,), (ignored, classes, losses, weights) = call.inputs, call.outputs, call.scratch
    reduction, ignore_index = call.parameters["reduction"], call.parameters["ignore_index"]
    reduce = _REDUCTIONS[reduction]

    def run() -> None:
        np.equal(target, ignore_index, ignored)
        np.copyto(classes, target)
        np.copyto(classes, 0, where=ignored)
        np.negative(np.take_along_axis(x, classes[:, None], 1)[:, 0], losses)
        np.copyto(weights, weight[0][classes] if weight else 1)
        np.multiply(losses, weights, losses)
        for array in (losses, weights):
            np.copyto(array, 0, where=ignored)
        reduce(losses, weights, out)

    return run


def _none(losses: Array, weights: Array, out: Array) -> None:
    np.copyto(out, losses)


def _sum(losses: Array, weights: Array, out: Array) -> None:
    np.copyto(out, losses.sum())


def _mean(losses: Array, weights: Array, out: Array) -> None:
    np.copyto(out, losses.sum() / weights.sum())


_REDUCTIONS = MappingProxyType({"mean": _mean, "none": _none, "sum": _sum})

KERNELS: Mapping[str, NumpyKernel] = {"negative_log_likelihood": NumpyKernel(bind=_bind_likelihood, scratch=_scratch)}
"""Rows of the kernel table."""
