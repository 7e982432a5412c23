"""The device's own form of a model: tensors and instructions, channels last, activations fused.

A vendor's compiler would call it a low-level graph. It does not depend on the adapter IR: an instruction names a
kernel, and all its contents can be written as JSON and raw bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnadapter.ir.deferred_arrays import DeferredArray, contents_of
from nnadapter.ir.operand import Array
from nnadapter.process.resources import memoize

Parameters = Mapping[str, Any]
"""Arguments of a kernel besides its tensors: numbers, strings, and tuples of these."""


class TensorType(NamedTuple):
    """Element type and dimensions of one tensor."""

    dtype: str
    """A numpy name. Half precision is held in `float32` cells that are rounded to `float16` values."""
    dimensions: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        """Bytes of the contents."""
        return self.size * _itemsize(self.dtype)


@memoize(256)
def _itemsize(dtype: str) -> int:
    return int(np.dtype(dtype).itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class NpuTensor:
    """One tensor; always contiguous."""

    type: TensorType
    value: Array | None = None
    """The contents of a constant, packed for its kernel. They may be deferred (`ir.deferred_arrays`) until the graph is
    compiled."""
    view_of: int | None = None
    """The tensor whose memory this one shows in other dimensions; None if it has memory of its own."""


class Activation(NamedTuple):
    """A function applied to an instruction's output while it is in cache."""

    function: str
    """A row of `kernels.kernel.FUNCTIONS`."""
    parameters: tuple[float, ...] = ()


class Instruction(NamedTuple):
    """One call of a kernel. All numbers are positions in `NpuGraph.tensors`."""

    kernel: str
    """A row of `kernels.KERNELS`."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Parameters = MappingProxyType({})
    activation: Activation | None = None

    @property
    def label(self) -> str:
        """Its name in reports: `convolution+relu`."""
        name = self.kernel.replace("_", " ")
        return name if self.activation is None else f"{name}+{self.activation.function}"


@dataclass(frozen=True, slots=True, eq=False)
class NpuGraph:
    """A whole model, ready to be placed in memory."""

    tensors: tuple[NpuTensor, ...]
    instructions: tuple[Instruction, ...]
    """In the order in which they run."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    """No two share memory, and none is an input, a constant, or a view of one."""

    def with_values(self, values: Mapping[int, Array]) -> NpuGraph:
        """Return the graph with other contents of some constants."""
        tensors = list(self.tensors)
        for index, value in values.items():
            tensors[index] = NpuTensor(tensors[index].type, value, tensors[index].view_of)
        return NpuGraph(tuple(tensors), self.instructions, self.inputs, self.outputs)

    def with_contents(self) -> NpuGraph:
        """Return the graph with the contents of all constants computed."""
        deferred = {i: each.value for i, each in enumerate(self.tensors) if isinstance(each.value, DeferredArray)}
        return self.with_values({index: contents_of(value) for index, value in deferred.items()})

    def owners(self) -> Sequence[int]:
        """Return for every tensor the one that has the memory in which it lies."""
        return [position if tensor.view_of is None else tensor.view_of for position, tensor in enumerate(self.tensors)]
