"""Kernels along axes: reductions, positions of extremes, the largest few, running sums and products."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.drivers.fake_npu.kernels.summation import bind_summation, partial_sums
from nnadapter.ir.operand import Array


def _bind_reduction(function: np.ufunc) -> Callable[[KernelArguments], Run]:
    def bind(call: KernelArguments) -> Run:
        (x,), (out,) = call.inputs, call.outputs
        axes = tuple(call.parameters["axes"])
        # Without the data type, numpy would add narrow integers in a wider type; the IR's result wraps around.
        return lambda: function.reduce(x, axis=axes, dtype=out.dtype, out=out, keepdims=out.ndim == x.ndim)

    return bind


def _sum_scratch(outline: Outline) -> tuple[TensorType, ...]:
    return partial_sums(outline.inputs[0], outline.parameters["axes"])


def _bind_sum(call: KernelArguments) -> Run:
    return bind_summation(call.inputs[0], call.outputs[0], call.parameters["axes"], call.scratch)


def _bind_mean(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    add, share = _bind_sum(call), out.size / x.size

    def run() -> None:
        add()
        np.multiply(out, share, out)

    return run


def _bind_extreme(find: Callable[..., Array], best: np.ufunc) -> Callable[[KernelArguments], Run]:
    """The position of the extreme: the first of equals, or the last.

    An element that is not a number is passed over, as ONNX Runtime does it; but one at the first place is the extreme,
    since nothing compares as more.

    Args:
        find: numpy's function of positions, which finds what is not a number first.
        best: numpy's function of two values that passes over what is not a number.
    """

    def bind(call: KernelArguments) -> Run:
        (x,), (out,) = call.inputs, call.outputs
        axis, last = call.parameters["axis"], call.parameters["select_last_index"]
        result = out.reshape(x.shape[:axis] + x.shape[axis + 1 :])
        size = x.shape[axis]
        source, is_real = np.flip(x, axis) if last else x, x.dtype.kind == "f"

        def run() -> None:
            find(source, axis=axis, out=result)
            if is_real and np.isnan(np.take_along_axis(source, np.expand_dims(result, axis), axis)).any():
                extreme = best.reduce(x, axis=axis, keepdims=True)
                np.argmax(source == extreme, axis=axis, out=result)
                np.copyto(result, size - 1 if last else 0, where=np.isnan(x.take(0, axis)))
            if last:
                np.subtract(size - 1, result, result)

        return run

    return bind


def _bind_top_k(call: KernelArguments) -> Run:
    """The k largest or smallest, in order; of equals the one with the lower index comes first.

    What is not a number is larger than all else. ONNX Runtime gives what its heap happens to hold then.
    """
    (x,), (values, indices) = call.inputs, call.outputs
    axis, largest = call.parameters["axis"], call.parameters["largest"]
    count, size = values.shape[axis], x.shape[axis]

    def run() -> None:
        if largest:
            # A stable ascending sort of the flipped data, read backwards, keeps equals in their order.
            order = size - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis=axis, kind="stable")
        np.copyto(indices, np.take(order, range(count), axis=axis))
        np.copyto(values, np.take_along_axis(x, indices, axis=axis))

    return run


def bind_running(function: np.ufunc, first: int) -> Callable[[KernelArguments], Run]:
    """A running total; `first` is what an exclusive one starts with."""

    def bind(call: KernelArguments) -> Run:
        (x,), (out,) = call.inputs, call.outputs
        axis = call.parameters["axis"]
        if call.parameters["reverse"]:
            x, out = np.flip(x, axis), np.flip(out, axis)
        # From here on, "first" means first in the direction of the total.
        x, out = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
        if not call.parameters["exclusive"]:
            return lambda: function.accumulate(x, axis=0, dtype=out.dtype, out=out)

        def run() -> None:
            out[0] = first
            function.accumulate(x[:-1], axis=0, dtype=out.dtype, out=out[1:])

        return run

    return bind


def _without(type_: TensorType, axis: int) -> tuple[int, ...]:
    return (*type_.dimensions[:axis], *type_.dimensions[axis + 1 :])


def _hardmax_scratch(outline: Outline) -> tuple[TensorType, ...]:
    return (TensorType("int64", _without(outline.inputs[0], outline.parameters["axis"])),)


def _bind_hardmax(call: KernelArguments) -> Run:
    """1 where an element's position is that of the first of the largest, 0 elsewhere.

    What is not a number is the largest. What ONNX Runtime makes of it depends on how it vectorizes.
    """
    (x,), (out,), (largest,), axis = call.inputs, call.outputs, call.scratch, call.parameters["axis"]
    positions = np.arange(x.shape[axis]).reshape([-1 if place == axis else 1 for place in range(x.ndim)])
    spread = np.expand_dims(largest, axis)

    def run() -> None:
        np.argmax(x, axis=axis, out=largest)
        np.equal(positions, spread, out=out)

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "arg_max": NumpyKernel(bind=_bind_extreme(np.argmax, np.fmax)),
    "arg_min": NumpyKernel(bind=_bind_extreme(np.argmin, np.fmin)),
    "reduce_max": NumpyKernel(bind=_bind_reduction(np.maximum)),
    "reduce_mean": NumpyKernel(bind=_bind_mean, scratch=_sum_scratch),
    "reduce_min": NumpyKernel(bind=_bind_reduction(np.minimum)),
    "reduce_prod": NumpyKernel(bind=_bind_reduction(np.multiply)),
    "reduce_sum": NumpyKernel(bind=_bind_sum, scratch=_sum_scratch),
    "top_k": NumpyKernel(bind=_bind_top_k),
    "hardmax": NumpyKernel(bind=_bind_hardmax, scratch=_hardmax_scratch),
    "running_product": NumpyKernel(bind=bind_running(np.multiply, 1)),
    "running_sum": NumpyKernel(bind=bind_running(np.add, 0)),
}
"""Rows of the kernel table."""
