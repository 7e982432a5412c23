"""Kernels along one axis that keep it: running sums and products, the place of the largest element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Kernel, Run


def bind_running(function: np.ufunc, first: int) -> Callable[[Call], Run]:
    """A running total; `first` is what an exclusive one starts with."""

    def bind(call: Call) -> Run:
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


def _hardmax_scratch(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    return (TensorType("int64", _without(inputs[0], parameters["axis"])),)


def _bind_hardmax(call: Call) -> Run:
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


ACCUMULATION_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "hardmax": Kernel(bind=_bind_hardmax, scratch=_hardmax_scratch),
        "running_product": Kernel(bind=bind_running(np.multiply, 1)),
        "running_sum": Kernel(bind=bind_running(np.add, 0)),
    }
)
"""Rows of the kernel table."""
