"""Emitter: the interface of lowerings to the device graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.graph import Activation, Instruction, NpuGraph, NpuTensor, Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.ir.deferred_arrays import deferrable, same_form
from nnadapter.ir.derived import applied, derived
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Lifetime, dtype_name

_LARGEST_HALF = float(np.finfo(np.float16).max)


class Emitter:
    """Builder of the device graph of one model.

    An operand of the adapter IR has at most one tensor with the operand's dimensions and layout. Half-precision values
    are stored as float32.
    """

    def __init__(self, model: Model, arithmetic: Arithmetic) -> None:
        self.model = model
        self.instructions: list[Instruction] = []
        self._tensors: list[NpuTensor] = []
        self._half_precision = arithmetic.half_precision
        self._tensor_of: dict[int, int] = {}
        self._inputs = tuple(self._add_input(operand) for operand in model.inputs)

    def type_of(self, tensor: int) -> TensorType:
        return self._tensors[tensor].type

    def add_constant(self, value: Array) -> int:
        value = applied(_contiguous, value)
        return self._add(NpuTensor(TensorType(dtype_name(value.dtype), value.shape), value))

    def view(self, tensor: int, dimensions: Sequence[int]) -> int:
        """Return a tensor that shows `tensor` with other dimensions, without an instruction."""
        source, type_ = self._tensors[tensor], TensorType(self.type_of(tensor).dtype, tuple(dimensions))
        if source.type.dimensions == type_.dimensions:
            return tensor
        if source.value is not None:
            return self._add(NpuTensor(type_, applied(_reshaped, source.value, dimensions=type_.dimensions)))
        return self._add(NpuTensor(type_, view_of=tensor if source.view_of is None else source.view_of))

    def transpose(self, tensor: int, perm: Sequence[int]) -> int:
        """Return the tensor with permuted axes; a view if only axes of size 1 move."""
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
        """Append an instruction; return one new tensor for each type in `results`."""
        assert activation is None or KERNELS[kernel].fuses, f"{kernel} cannot apply an activation"
        outputs = tuple(self._add(NpuTensor(type_)) for type_ in results)
        self.instructions.append(Instruction(kernel, tuple(inputs), outputs, parameters or {}, activation))
        return outputs

    def tensor(self, operand: int) -> int:
        if operand not in self._tensor_of:
            self._tensor_of[operand] = self.add_constant(self.constant(operand))
        return self._tensor_of[operand]

    def is_constant(self, operand: int) -> bool:
        return self.model.operands[operand].lifetime is Lifetime.CONSTANT

    def constant(self, operand: int) -> Array:
        """Return a constant's value, rounded if it has half precision."""
        value = self.model.operands[operand].value
        assert value is not None, "a temporary is read before it is set"
        return derived(_to_half, value) if self._is_half(operand) else value

    def result_type(self, operand: int) -> TensorType:
        type_ = self.model.type_at(operand)
        return TensorType("float32" if type_.dtype is DataType.FLOAT16 else type_.dtype.value, type_.dimensions)

    def assign(self, operand: int, tensor: int) -> None:
        assert self.type_of(tensor) == self.result_type(operand), "a lowering emitted a tensor of the wrong type"
        self._tensor_of[operand] = tensor

    def emit_operation(
        self,
        operation: Operation,
        kernel: str,
        parameters: Parameters | None = None,
        activation: Activation | None = None,
        inputs: Sequence[int] | None = None,
    ) -> None:
        """Emit an operation as one instruction and assign its outputs; `inputs` defaults to its own."""
        if inputs is None:
            inputs = [self.tensor(operand) for operand in operation.inputs if operand != ABSENT]
        results = [self.result_type(operand) for operand in operation.outputs]
        outputs = self.emit(kernel, inputs, results, parameters, activation)
        for operand, tensor in zip(operation.outputs, outputs, strict=True):
            self.assign(operand, tensor)

    def round_results(self, operands: Sequence[int]) -> None:
        for operand in operands:
            if self._is_half(operand):
                self._tensor_of[operand] = self._rounded(self._tensor_of[operand])

    def finish(self) -> NpuGraph:
        """Return the graph; outputs that share memory with other tensors are copied."""
        owners, outputs = set(self._inputs), []
        for operand in self.model.outputs:
            tensor = self._output(operand, owners)
            owners.add(self._owner(tensor))
            outputs.append(tensor)
        return NpuGraph(tuple(self._tensors), tuple(self.instructions), self._inputs, tuple(outputs))

    def _output(self, operand: int, owners: set[int]) -> int:
        tensor, type_ = self.tensor(operand), self.model.type_at(operand)
        result = TensorType(type_.dtype.value, type_.dimensions)
        if self.type_of(tensor) != result:
            return self.emit("cast", (tensor,), (result,))[0]
        owner = self._owner(tensor)
        if owner in owners or self._tensors[owner].value is not None:
            return self.emit("copy", (tensor,), (result,))[0]
        return tensor

    def _add_input(self, operand: int) -> int:
        type_ = self.model.type_at(operand)
        tensor = self._tensor_of[operand] = self._add(NpuTensor(TensorType(type_.dtype.value, type_.dimensions)))
        if type_.dtype is DataType.FLOAT16:
            self._tensor_of[operand] = self.emit("cast", (tensor,), (self.result_type(operand),))[0]
        elif self._is_half(operand):
            self._tensor_of[operand] = self._rounded(tensor)
        return tensor

    def _add(self, tensor: NpuTensor) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _owner(self, tensor: int) -> int:
        view_of = self._tensors[tensor].view_of
        return tensor if view_of is None else view_of

    def _is_half(self, operand: int) -> bool:
        dtype = self.model.type_at(operand).dtype
        return dtype is DataType.FLOAT16 or (self._half_precision and dtype is DataType.FLOAT32)

    def _rounded(self, tensor: int) -> int:
        return self.emit("round_to_half", (tensor,), (self.type_of(tensor),))[0]


@deferrable(same_form, follows=True)
def _contiguous(value: Array) -> Array:
    """Return a contiguous array; `ascontiguousarray` turns a scalar into a vector."""
    return np.ascontiguousarray(value).reshape(value.shape)


def _reshaped(value: Array, *, dimensions: tuple[int, ...]) -> Array:
    return value.reshape(dimensions)


def _to_half(value: Array) -> Array:
    """Round to half precision; finite values saturate, because masks may contain the lowest float32."""
    if value.max(initial=0) > _LARGEST_HALF or value.min(initial=0) < -_LARGEST_HALF:
        value = np.where(np.isinf(value), value, np.clip(value, -_LARGEST_HALF, _LARGEST_HALF))
    return value.astype(np.float16).astype(np.float32)
