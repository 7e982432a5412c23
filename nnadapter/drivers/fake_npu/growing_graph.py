"""A device graph that grows: tensors and instructions, whatever model they are made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.graph import Activation, Instruction, NpuTensor, Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.ir.deferred_arrays import deferrable, same_form
from nnadapter.ir.derived import applied
from nnadapter.ir.operand import Array, dtype_name


class GrowingGraph:
    """Tensors and instructions so far; both keep their numbers."""

    def __init__(self) -> None:
        self._tensors: list[NpuTensor] = []
        self._instructions: list[Instruction] = []

    @property
    def instruction_count(self) -> int:
        """How many instructions there are so far."""
        return len(self._instructions)

    def type_of(self, tensor: int) -> TensorType:
        """The type of a tensor."""
        return self._tensors[tensor].type

    def add_constant(self, value: Array) -> int:
        """Add a constant, made contiguous."""
        value = applied(_contiguous, value)
        return self._add(NpuTensor(TensorType(dtype_name(value.dtype), value.shape), value))

    def view(self, tensor: int, dimensions: Sequence[int]) -> int:
        """The same memory in other dimensions; costs nothing when the program runs."""
        source = self._tensors[tensor]
        if source.type.dimensions == tuple(dimensions):
            return tensor
        type_ = TensorType(source.type.dtype, tuple(dimensions))
        if source.value is not None:
            return self._add(NpuTensor(type_, applied(_reshaped, source.value, dimensions=tuple(dimensions))))
        return self._add(NpuTensor(type_, view_of=tensor if source.view_of is None else source.view_of))

    def transpose(self, tensor: int, perm: Sequence[int]) -> int:
        """The tensor with its axes in another order; a view where only axes of size 1 change places."""
        dimensions = self.type_of(tensor).dimensions
        result = tuple(dimensions[axis] for axis in perm)
        moved = [axis for axis in perm if dimensions[axis] != 1]
        if moved == sorted(moved):
            return self.view(tensor, result)
        type_ = TensorType(self.type_of(tensor).dtype, result)
        return self.emit("transpose", (tensor,), (type_,), {"perm": tuple(perm)})[0]

    def emit(
        self,
        kernel: str,
        inputs: Sequence[int],
        results: Sequence[TensorType],
        parameters: Parameters | None = None,
        activation: Activation | None = None,
    ) -> tuple[int, ...]:
        """Add one instruction.

        Returns:
            One new tensor per type in `results`.
        """
        assert activation is None or KERNELS[kernel].fuses, f"{kernel} cannot apply an activation"
        first = len(self._tensors)
        self._tensors.extend(map(NpuTensor, results))
        outputs = tuple(range(first, len(self._tensors)))
        self._instructions.append(
            Instruction(
                kernel=kernel, inputs=tuple(inputs), outputs=outputs, parameters=parameters or {}, activation=activation
            )
        )
        return outputs

    def instructions(self, start: int, stop: int) -> Sequence[Instruction]:
        """The instructions between two counts."""
        return self._instructions[start:stop]

    def _owner(self, tensor: int) -> int:
        view_of = self._tensors[tensor].view_of
        return tensor if view_of is None else view_of

    def _add(self, tensor: NpuTensor) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1


@deferrable(same_form, follows=True)
def _contiguous(value: Array) -> Array:
    """Reshaped so that a scalar stays one."""
    return np.ascontiguousarray(value).reshape(value.shape)


def _reshaped(value: Array, *, dimensions: tuple[int, ...]) -> Array:
    return value.reshape(dimensions)
