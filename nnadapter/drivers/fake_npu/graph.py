"""Device graph of a model: tensors and kernel calls, channels last, activations fused.

Independent of the adapter IR; serializes as JSON and raw bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnadapter.ir.deferred_arrays import DeferredArray, contents_of
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass

Parameters = Mapping[str, Any]
"""Arguments of a kernel other than tensors: numbers, strings, and tuples."""


class TensorType(NamedTuple):
    """Data type and dimensions."""

    dtype: str
    """numpy name. Half precision is `float32` with values rounded to `float16`."""
    dimensions: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.dimensions)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class NpuTensor:
    """Contiguous tensor of a device graph."""

    type: TensorType
    value: Array | None = None
    """Constant contents, packed for the kernel; may be deferred (`ir.deferred_arrays`) until compilation."""
    view_of: int | None = None
    """Tensor that owns the memory, if this one only shows it with other dimensions."""


class Activation(NamedTuple):
    """Function applied to an instruction's output while that is in cache."""

    function: str
    """Key of `kernels.kernel.FUNCTIONS`."""
    parameters: tuple[float, ...] = ()


class Instruction(NamedTuple):
    """Kernel call on positions in `NpuGraph.tensors`."""

    kernel: str
    """Key of `kernels.KERNELS`."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Parameters = MappingProxyType({})
    activation: Activation | None = None

    @property
    def label(self) -> str:
        """Name in reports, such as `convolution+relu`."""
        name = self.kernel.replace("_", " ")
        return name if self.activation is None else f"{name}+{self.activation.function}"


@dataclass(frozen=True, slots=True, eq=False)
class NpuGraph:
    """Device graph before memory planning."""

    tensors: tuple[NpuTensor, ...]
    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    """Tensors that share no memory with each other, inputs or constants."""

    def with_values(self, values: Mapping[int, Array]) -> NpuGraph:
        tensors = list(self.tensors)
        for index, value in values.items():
            tensors[index] = NpuTensor(tensors[index].type, value, tensors[index].view_of)
        return NpuGraph(tuple(tensors), self.instructions, self.inputs, self.outputs)

    def with_contents(self) -> NpuGraph:
        deferred = {i: tensor.value for i, tensor in enumerate(self.tensors) if isinstance(tensor.value, DeferredArray)}
        return self.with_values({index: contents_of(value) for index, value in deferred.items()})

    def owners(self) -> Sequence[int]:
        return [position if tensor.view_of is None else tensor.view_of for position, tensor in enumerate(self.tensors)]
