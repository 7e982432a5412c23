"""Compiled programs: device graph, memory plan and packed weights, with static or dynamic shapes.

The serialized form is an `Envelope`: a JSON header and weights, aligned to 64 bytes. Dynamic tensors get extra memory,
so that growing sizes rarely need a new memory plan.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnadapter.drivers.arenas import Arena
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.fake_npu.execution import Binding, Bound, FakeNpuExecution, InstructionEvents, Resources
from nnadapter.drivers.fake_npu.graph import Activation, Instruction, NpuGraph, NpuTensor, TensorType
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import IncompatibleProgramError, OutOfMemoryError
from nnadapter.ir.deferred_arrays import DeferredArray
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    from nnadapter.ir.model import Model

MAGIC = b"FAKENPU\0"
VERSION = 8
"""Format version. Raise it when the packing or the parameters of a kernel change."""
_ENVELOPE = Envelope(magic=MAGIC, version=VERSION)
_ALIGNMENT = 64
_BYTES_PER_INSTRUCTION = 4 << 10


class ProgramNeeds(NamedTuple):
    """Requirements of a program on its context's options."""

    arithmetic: Arithmetic
    memory_bytes: int
    operations: tuple[str, ...]

    def check(self, options: FakeNpuOptions) -> None:
        mismatch, off = "", [operation for operation in self.operations if operation in options.switched_off]
        if self.arithmetic != options.arithmetic:
            mismatch = f"computes with {self.arithmetic}, got a context with {options.arithmetic}"
        elif self.memory_bytes > options.memory_bytes:
            limit = f"got a context with memory_bytes {options.memory_bytes}"
            mismatch = f"needs {self.memory_bytes} bytes of device memory, {limit}"
        elif off:
            mismatch = f"uses {', '.join(off)}, got a context with it in the option switched_off"
        if mismatch:
            raise IncompatibleProgramError(
                f"the program {mismatch}; compile the model again, or use the options of that compilation"
            )


def packed_bytes(graph: NpuGraph, model: Model) -> Mapping[Hashable, int]:
    """Return the size in bytes of each packed array, keyed by `id(array)`, without the model's own arrays."""
    unpacked = {id(_base(operand.value)) for operand in model.operands if operand.value is not None}
    bases = [_base(tensor.value) for tensor in graph.tensors if tensor.value is not None]
    return {id(base): base.nbytes for base in bases if id(base) not in unpacked}


def weight_bytes(graph: NpuGraph) -> int:
    """Return the total bytes of constants, each counted once and rounded up to the alignment."""
    places = {_place(tensor.value) for tensor in graph.tensors if tensor.value is not None}
    return sum(nbytes + -nbytes % _ALIGNMENT for _, nbytes in places)


def _base(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _place(value: Array) -> tuple[int, int]:
    """Return a key for a constant's memory: address and size, or a unique key if the array is not computed yet."""
    if isinstance(value, DeferredArray):
        return -id(value), value.nbytes
    return value.__array_interface__["data"][0], value.nbytes


class _BoundProgram(Program):
    def __init__(self, graph: NpuGraph, resources: Resources, packed: Mapping[Hashable, int]) -> None:
        self.graph, self._resources, self._packed = graph, resources, packed

    @property
    def memory_bytes(self) -> int:
        return _BYTES_PER_INSTRUCTION * len(self.graph.instructions)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        arenas = self._resources.arenas
        return {**self._packed, ("arenas", id(arenas)): arenas.used_bytes}


class FakeNpuProgram(_BoundProgram):
    """Program with static shapes. Immutable, so executions can run concurrently."""

    def __init__(
        self,
        graph: NpuGraph,
        memory: MemoryPlan,
        needs: ProgramNeeds,
        resources: Resources,
        *,
        packed: Mapping[Hashable, int] | None = None,
        unshared_bytes: int = 0,
        events: InstructionEvents | None = None,
    ) -> None:
        super().__init__(graph, resources, packed or {})
        self.memory, self.needs, self._events, self._unshared_bytes = memory, needs, events, unshared_bytes

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._unshared_bytes

    @property
    def execution_bytes(self) -> int:
        return super().memory_bytes

    def create_execution(self) -> Execution:
        return FakeNpuExecution(Binding(self.graph, self.memory), self._resources, self._events)

    def serialize(self) -> bytes:
        weights = _Weights()
        header = {
            "byteorder": sys.byteorder,
            "needs": {**self.needs._asdict(), "arithmetic": self.needs.arithmetic._asdict()},
            "tensors": [
                [*tensor.type, tensor.view_of, None if tensor.value is None else weights.add(tensor.value)]
                for tensor in self.graph.tensors
            ],
            "instructions": [
                [*instruction[:3], dict(instruction.parameters), instruction.activation]
                for instruction in self.graph.instructions
            ],
            "inputs": self.graph.inputs,
            "outputs": self.graph.outputs,
            "memory": self.memory,
        }
        written = json.dumps(header).encode()
        written += bytes(-(PREFIX_BYTES + len(written)) % _ALIGNMENT)
        return _ENVELOPE.close(written, weights.parts)


class _Weights:
    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._nbytes = 0
        self._offsets: dict[tuple[int, int], int] = {}

    def add(self, value: Array) -> int:
        key = _place(value)
        if key not in self._offsets:
            self._offsets[key] = self._nbytes
            padding = bytes(-value.nbytes % _ALIGNMENT)
            self.parts += [value.reshape(-1).view(np.uint8).data, padding]
            self._nbytes += value.nbytes + len(padding)
        return self._offsets[key]


def deserialize_program(blob: bytes | memoryview, resources: Resources, *, is_checked: bool = False) -> FakeNpuProgram:
    """Deserialize a program; weights are views of `blob`, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or of another version or byte order.
    """
    written, weights = _ENVELOPE.open(blob, is_checked=is_checked)
    header: dict[str, Any] = json.loads(written.rstrip(b"\0"))
    if header["byteorder"] != sys.byteorder:
        order = f"{header['byteorder']}-endian, expected {sys.byteorder}"
        raise IncompatibleProgramError(f"the program's weights are {order}-endian; {ADVICE}")
    graph = NpuGraph(
        tuple(_read_tensor(row, weights) for row in header["tensors"]),
        tuple(_read_instruction(row) for row in header["instructions"]),
        tuple(header["inputs"]),
        tuple(header["outputs"]),
    )
    homes, *sizes = header["memory"]
    memory, needs = MemoryPlan(tuple((Home(home), place) for home, place in homes), *sizes), header["needs"]
    program_needs = ProgramNeeds(Arithmetic(**needs["arithmetic"]), needs["memory_bytes"], tuple(needs["operations"]))
    return FakeNpuProgram(graph, memory, program_needs, resources, unshared_bytes=weights.nbytes)


def _read_tensor(row: list[Any], weights: memoryview) -> NpuTensor:
    dtype, dimensions, view_of, offset = row
    type_ = TensorType(dtype, tuple(dimensions))
    if offset is None:
        return NpuTensor(type_, view_of=view_of)
    return NpuTensor(type_, np.frombuffer(weights, dtype, type_.size, offset).reshape(type_.dimensions))


def _read_instruction(row: list[Any]) -> Instruction:
    kernel, inputs, outputs, parameters, activation = row
    return Instruction(
        kernel,
        tuple(inputs),
        tuple(outputs),
        {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()},
        None if activation is None else Activation(activation[0], tuple(activation[1])),
    )


class SymbolicGraph:
    """Device graph with symbolic sizes."""

    def __init__(self, graph: NpuGraph) -> None:
        from nnadapter.ir.symbolic_numbers import Interned, is_symbolic  # lazy: programs with static shapes need none

        self.graph = graph
        self._numbers = Interned()
        self._types: dict[tuple[str, int], int] = {}
        self.kinds: dict[int, int] = {}
        """Kind of each tensor with a dynamic shape. Tensors of one kind always have equal types."""
        for index, tensor in enumerate(graph.tensors):
            if is_symbolic(dimensions := tensor.type.dimensions):
                type_ = tensor.type.dtype, self._numbers.add(dimensions)
                self.kinds[index] = self._types.setdefault(type_, len(self._types))
        self._parameters: Mapping[int, Mapping[str, int]] = {
            index: {name: self._numbers.add(value) for name, value in instruction.parameters.items()}
            for index, instruction in enumerate(graph.instructions)
            if any(map(is_symbolic, instruction.parameters.values()))
        }
        self.instructions = [
            index
            for index, instruction in enumerate(graph.instructions)
            if index in self._parameters or self.kinds.keys() & {*instruction.inputs, *instruction.outputs}
        ]

    def specialize(self, replay_values: Sequence[Any]) -> NpuGraph:
        numbers = self._numbers.substitute_sizes(replay_values)
        types = [TensorType(dtype, numbers[dimensions]) for dtype, dimensions in self._types]
        tensors, instructions = list(self.graph.tensors), list(self.graph.instructions)
        for index, kind in self.kinds.items():
            tensors[index] = NpuTensor(types[kind], tensors[index].value, tensors[index].view_of)
        for index, positions in self._parameters.items():
            parameters = {name: numbers[position] for name, position in positions.items()}
            instructions[index] = instructions[index]._replace(parameters=parameters)
        return NpuGraph(tuple(tensors), tuple(instructions), self.graph.inputs, self.graph.outputs)

    def place(self, graph: NpuGraph, available_bytes: int) -> tuple[MemoryPlan, Mapping[int, int]]:
        """Plan memory, with every dynamic tensor enlarged to a power of two if `available_bytes` suffice.

        Returns the plan and the bytes reserved per dynamic tensor. Raises OutOfMemoryError.
        """
        needed = {tensor: graph.tensors[tensor].type.nbytes for tensor in self.kinds}
        room = {tensor: 1 << nbytes.bit_length() for tensor, nbytes in needed.items()}
        memory = plan_memory(graph, self.kinds, room)
        if memory.arena_bytes > available_bytes:
            room, memory = needed, plan_memory(graph, self.kinds)
        if memory.arena_bytes > available_bytes:
            raise OutOfMemoryError(
                f"for inputs of these sizes the segment needs {memory.arena_bytes} bytes of device memory for the "
                f"arena, available: {available_bytes}; raise the option memory_bytes"
            )
        return memory, room


class FakeNpuOpenProgram(_BoundProgram):
    """Program with dynamic shapes; executions can run concurrently."""

    def __init__(
        self,
        graph: NpuGraph,
        available_bytes: int,
        resources: Resources,
        packed: Mapping[Hashable, int],
        events: Callable[[NpuGraph], InstructionEvents] | None = None,
    ) -> None:
        super().__init__(graph, resources, packed)
        self.symbolic, self._events = SymbolicGraph(graph), events
        self._available_bytes = available_bytes
        self._last: tuple[Sequence[Any], Binding, Mapping[int, int]] | None = None

    def create_execution(self) -> Execution:
        from nnadapter.drivers.table_program import DynamicTableExecution  # lazy: deserialized programs are static

        return DynamicTableExecution(self)

    def execution_at(self, sizes: Sequence[Any]) -> Execution:
        binding = self._binding(sizes)
        events = self._events and self._events(binding.graph)
        return _SizedExecution(self, binding, self._resources, events)

    def _binding(self, sizes: Sequence[Any]) -> Binding:
        last = self._last
        if last is not None and last[0] is sizes:
            return last[1]
        graph = self.symbolic.specialize(sizes)
        if last is not None and all(graph.tensors[tensor].type.nbytes <= room for tensor, room in last[2].items()):
            binding, room = last[1].resized(graph), last[2]
        else:
            memory, room = self.symbolic.place(graph, self._available_bytes)
            binding = Binding(graph, memory)
        self._last = sizes, binding, room
        return binding


class _SizedExecution(FakeNpuExecution):
    def __init__(self, program: FakeNpuOpenProgram, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._program = program

    @property
    def _holder(self) -> object:
        return self._program

    def _bound(self, arena: Arena) -> Bound:
        binding, symbolic = self._binding, self._program.symbolic
        last: tuple[Binding, Bound] | None = arena.bound.get(self._program)
        if last is not None and last[0] is binding:
            return last[1]
        if last is None or last[0].memory is not binding.memory:
            bound = binding.bound(arena.bytes)
        else:
            bound = binding.bound_again(arena.bytes, last[1], symbolic.kinds, symbolic.instructions)
        arena.bound[self._program] = binding, bound
        return bound
