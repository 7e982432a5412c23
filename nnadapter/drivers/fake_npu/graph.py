"""The device's own form of a model: tensors and instructions, channels last, activations fused.

This is what a vendor's compiler would call its low-level graph. It knows nothing of the adapter IR: an instruction
names a kernel, and everything it holds can be written as JSON and raw bytes.
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
"""What a kernel must know beside its tensors: numbers, strings, and tuples of these."""


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
    """The contents of a constant, packed as its kernel wants them; None for everything else. Before the graph is
    compiled they may be deferred (`ir.deferred`)."""
    view_of: int | None = None
    """The tensor whose memory this one is, seen in other dimensions; None if it has memory of its own."""


class Activation(NamedTuple):
    """A function applied to an instruction's output while it is still in cache."""

    function: str
    """A row of `kernels.functions.FUNCTIONS`."""
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
        """What a report calls it: `convolution+relu`."""
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

    def with_contents(self) -> NpuGraph:
        """The graph with the contents of all constants computed."""
        tensors = tuple(
            NpuTensor(tensor.type, contents_of(tensor.value), tensor.view_of)
            if isinstance(tensor.value, DeferredArray)
            else tensor
            for tensor in self.tensors
        )
        return NpuGraph(tensors, self.instructions, self.inputs, self.outputs)

    def owners(self) -> Sequence[int]:
        """For every tensor, the one that has the memory in which it lies."""
        return [position if tensor.view_of is None else tensor.view_of for position, tensor in enumerate(self.tensors)]
