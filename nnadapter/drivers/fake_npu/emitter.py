"""The emitter, with which lowerings append tensors and instructions to a device graph."""

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


_MOST = float(np.finfo(np.float16).max)
"""The largest number of half precision."""
_CELL_TYPES = {dtype: "float32" if dtype is DataType.FLOAT16 else dtype.value for dtype in DataType}


def cell_type(dtype: DataType) -> str:
    """The numpy type in which the device holds that data type: half precision lies in float32 cells."""
    return _CELL_TYPES[dtype]


class Emitter(GrowingGraph):
    """Grows the device graph of one model.

    Every IR operand has at most one tensor, whose dimensions are the operand's, in the operand's layout.
    """

    def __init__(self, model: Model, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.model = model
        self._half_precision = arithmetic.half_precision
        self._tensor_of: dict[int, int] = {}
        self._result_types: dict[int, TensorType] = {}
        self._inputs = tuple(self._add_input(operand) for operand in model.inputs)

    def tensor(self, operand: int) -> int:
        """The tensor of an operand that was set, or of a constant."""
        if operand not in self._tensor_of:
            self._tensor_of[operand] = self.add_constant(self.constant(operand))
        return self._tensor_of[operand]

    def is_constant(self, operand: int) -> bool:
        """Whether the operand's contents are known."""
        return self.model.operands[operand].lifetime is Lifetime.CONSTANT

    def constant(self, operand: int) -> Array:
        """The contents of a constant operand, in the device's cells."""
        value, dtype = self.model.operands[operand].value, self.model.operands[operand].type.dtype
        assert value is not None, "a temporary is read before it is set"
        if self._is_half(dtype):
            return derived(_in_cells, value)
        return value

    def result_type(self, operand: int) -> TensorType:
        """The type of the tensor that an operand will have."""
        tensor_type = self._result_types.get(operand)
        if tensor_type is None:
            type_ = self.model.operands[operand].type
            tensor_type = self._result_types[operand] = TensorType(cell_type(type_.dtype), type_.dimensions)
        return tensor_type

    def assign(self, operand: int, tensor: int) -> None:
        """Say which tensor holds an operand."""
        made, wanted = self._tensors[tensor].type, self.result_type(operand)
        assert made is wanted or made == wanted, "a lowering made a tensor of the wrong type"
        self._tensor_of[operand] = tensor

    def emit_operation(
        self,
        operation: Operation,
        kernel: str,
        parameters: Parameters | None = None,
        activation: Activation | None = None,
        inputs: Sequence[int] | None = None,
    ) -> None:
        """Write an operation as one instruction, whose results are the operation's.

        Args:
            operation: what is written.
            kernel: of the instruction.
            parameters: of the instruction.
            activation: fused to it.
            inputs: tensors, the operation's inputs that are there if None.
        """
        if inputs is None:
            inputs = [self.tensor(operand) for operand in operation.inputs if operand != ABSENT]
        results = [self.result_type(operand) for operand in operation.outputs]
        for operand, tensor in zip(
            operation.outputs, self.emit(kernel, inputs, results, parameters, activation), strict=True
        ):
            self.assign(operand, tensor)

    def round_results(self, operands: Sequence[int]) -> None:
        """Round what was computed to half precision, where the operand or the whole context is in half precision."""
        for operand in operands:
            dtype = self.model.operands[operand].type.dtype
            if self._is_half(dtype):
                self._tensor_of[operand] = self._rounded(self._tensor_of[operand])

    def finish(self) -> NpuGraph:
        """The finished graph, in which no output shares memory with an input, a constant or another output."""
        taken = set(self._inputs)
        outputs = []
        for operand in self.model.outputs:
            tensor = self._output(operand, taken)
            taken.add(self._owner(tensor))
            outputs.append(tensor)
        return NpuGraph(tuple(self._tensors), tuple(self._instructions), self._inputs, tuple(outputs))

    def _output(self, operand: int, taken: set[int]) -> int:
        tensor = self.tensor(operand)
        type_ = self.model.operands[operand].type
        wanted = TensorType(type_.dtype.value, type_.dimensions)
        if self.type_of(tensor) != wanted:
            return self.emit("cast", (tensor,), (wanted,))[0]
        owner = self._owner(tensor)
        if owner in taken or self._tensors[owner].value is not None:
            return self.emit("copy", (tensor,), (wanted,))[0]
        return tensor

    def _add_input(self, operand: int) -> int:
        type_ = self.model.operands[operand].type
        input_tensor = self._add(NpuTensor(TensorType(type_.dtype.value, type_.dimensions)))
        self._tensor_of[operand] = input_tensor
        if type_.dtype is DataType.FLOAT16:
            self._tensor_of[operand] = self.emit("cast", (input_tensor,), (self.result_type(operand),))[0]
        elif self._half_precision and type_.dtype is DataType.FLOAT32:
            self._tensor_of[operand] = self._rounded(input_tensor)
        return input_tensor

    def _is_half(self, dtype: DataType) -> bool:
        return dtype is DataType.FLOAT16 or (self._half_precision and dtype is DataType.FLOAT32)

    def _rounded(self, tensor: int) -> int:
        return self.emit("round_to_half", (tensor,), (self.type_of(tensor),))[0]


def _in_cells(value: Array) -> Array:
    """Contents in float32, rounded to half precision: to its largest numbers, not to infinity.

    Masks say that nobody looks by the least float32, of which nothing is left where it is taken 0 times.
    """
    if value.max(initial=0) > _MOST or value.min(initial=0) < -_MOST:
        value = np.where(np.isinf(value), value, np.clip(value, -_MOST, _MOST))
    return value.astype(np.float16).astype(np.float32)
