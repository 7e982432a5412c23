"""Kernels of gated activations: a gate's activation times a value, while a block of both is in cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS, Function
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.ir.operand import Array


def _scratch(outline: Outline) -> tuple[TensorType, ...]:
    return (TensorType(outline.outputs[0].dtype, (min(outline.outputs[0].size, BLOCK_ELEMENTS),)),)


def _gated(swish: Function, gate: Array, value: Array, out: Array, opened: Array) -> None:
    swish(gate, opened, opened)
    np.multiply(opened, value, out)


def _bind_swiglu(call: KernelArguments) -> Run:
    gate, value, out = (array.reshape(-1) for array in (*call.inputs, *call.outputs))
    (opened,) = call.scratch
    swish = FUNCTIONS["swish"].make(call.parameters["alpha"])
    return in_sequence(
        [
            partial(_gated, swish, gate[block], value[block], out[block], opened[: block.stop - block.start])
            for block in blocks(out.size, BLOCK_ELEMENTS)
        ]
    )


KERNELS: Mapping[str, NumpyKernel] = {"swiglu": NumpyKernel(bind=_bind_swiglu, scratch=_scratch, in_place=(0, 1))}
"""Rows of the kernel table."""
