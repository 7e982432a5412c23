"""Compiled programs: device graph, memory plan and packed weights, and all of it as bytes.

Bytes are an `Envelope`: its header is JSON, and zeros up to a multiple of 64; its contents are the weights, each at a
multiple of 64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.execution import Binding, FakeNpuExecution, InstructionEvents
from nnadapter.drivers.fake_npu.graph import Activation, Instruction, NpuGraph, NpuTensor, TensorType
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import IncompatibleProgramError
from nnadapter.ir.deferred_arrays import DeferredArray
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    from nnadapter.ir.model import Model

MAGIC = b"FAKENPU\0"
VERSION = 7
"""Raised whenever a kernel's packing or parameters change, so that older programs are compiled again."""
_ENVELOPE = Envelope(magic=MAGIC, version=VERSION)
_ALIGNMENT = 64
_BYTES_PER_INSTRUCTION = 4 << 10
"""Measured on networks of 20 to 150 instructions, by the growth of the process from plan to plan."""


class ProgramNeeds(NamedTuple):
    """Requirements of a compiled program on its context."""

    arithmetic: Arithmetic
    memory_bytes: int
    """Bytes of device memory for weights, the arena, inputs and outputs."""
    operations: tuple[str, ...]
    """Adapter IR types that must not be switched off, sorted."""

    def check(self, options: FakeNpuOptions) -> None:
        """Raise IncompatibleProgramError unless a context of these options would compile the same program."""
        wrong, off = "", [operation for operation in self.operations if operation in options.switched_off]
        if self.arithmetic != options.arithmetic:
            wrong = f"computes with {self.arithmetic}, got a context with {options.arithmetic}"
        elif self.memory_bytes > options.memory_bytes:
            limit = f"got a context with memory_bytes {options.memory_bytes}"
            wrong = f"needs {self.memory_bytes} bytes of device memory, {limit}"
        elif off:
            wrong = f"has {', '.join(off)}, got a context with it in switched_off"
        if wrong:
            raise IncompatibleProgramError(f"the program {wrong}; compile the model again, or change the option")


def bound_bytes(graph: NpuGraph) -> int:
    """Return about the bytes of bound instructions, which are Python objects."""
    return _BYTES_PER_INSTRUCTION * len(graph.instructions)


def packed_bytes(graph: NpuGraph, model: Model) -> Mapping[Hashable, int]:
    """Return the bytes of packed weights, by array; unpacked weights are the model's."""
    unpacked = {id(_base(operand.value)) for operand in model.operands if operand.value is not None}
    bases = [_base(tensor.value) for tensor in graph.tensors if tensor.value is not None]
    return {id(base): base.nbytes for base in bases if id(base) not in unpacked}


def arena_bytes(arenas: Arenas) -> Mapping[Hashable, int]:
    """Return the bytes of the arenas of a context, which its programs share."""
    return {("arenas", id(arenas)): arenas.used_bytes}


def weight_bytes(graph: NpuGraph) -> int:
    """Return the bytes of all constants, each counted once."""
    places = {_place(tensor.value) for tensor in graph.tensors if tensor.value is not None}
    return sum(nbytes + -nbytes % _ALIGNMENT for _, nbytes in places)


def _base(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _place(value: Array) -> tuple[int, int]:
    """Return address and bytes of a constant; a deferred one has no address."""
    if isinstance(value, DeferredArray):
        return -id(value), value.nbytes
    return value.__array_interface__["data"][0], value.nbytes


class FakeNpuProgram(Program):
    """A model placed in memory; frozen, so any number of executions may run at the same time."""

    def __init__(
        self,
        graph: NpuGraph,
        memory: MemoryPlan,
        needs: ProgramNeeds,
        arenas: Arenas,
        device_memory: DeviceMemory,
        threads: int,
        *,
        packed: Mapping[Hashable, int] | None = None,
        unshared_bytes: int = 0,
        events: InstructionEvents | None = None,
    ) -> None:
        self.graph, self.memory, self.needs = graph, memory, needs
        self._resources, self._events = (arenas, device_memory, threads), events
        self._packed, self._unshared_bytes = packed or {}, unshared_bytes

    @property
    def memory_bytes(self) -> int:
        return self.execution_bytes + self._unshared_bytes

    @property
    def execution_bytes(self) -> int:
        return bound_bytes(self.graph)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return {**self._packed, **arena_bytes(self._resources[0])}

    def create_execution(self) -> Execution:
        return FakeNpuExecution(Binding(self.graph, self.memory), *self._resources, self._events)

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
    """Constants in the order in which they are written, each once."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self._nbytes = 0
        self._offsets: dict[tuple[int, int], int] = {}

    def add(self, value: Array) -> int:
        """Return the offset of a constant; views of the same memory share one."""
        key = _place(value)
        if key not in self._offsets:
            self._offsets[key] = self._nbytes
            padding = bytes(-value.nbytes % _ALIGNMENT)
            self.parts += [value.reshape(-1).view(np.uint8).data, padding]
            self._nbytes += value.nbytes + len(padding)
        return self._offsets[key]


def deserialize_program(
    blob: bytes | memoryview,
    arenas: Arenas,
    device_memory: DeviceMemory,
    threads: int,
    *,
    is_checked: bool = False,
) -> FakeNpuProgram:
    """Return the program that `FakeNpuProgram.serialize` wrote; its weights lie in `blob`, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: the bytes are truncated, were changed, or come from another version.
    """
    written, weights = _ENVELOPE.open(blob, is_checked=is_checked)
    header: dict[str, Any] = json.loads(written.rstrip(b"\0"))
    if header["byteorder"] != sys.byteorder:
        order = f"{header['byteorder']}-endian, expected {sys.byteorder}"
        raise IncompatibleProgramError(f"the program's weights are {order}; {ADVICE}")
    graph = NpuGraph(
        tuple(_read_tensor(row, weights) for row in header["tensors"]),
        tuple(_read_instruction(row) for row in header["instructions"]),
        tuple(header["inputs"]),
        tuple(header["outputs"]),
    )
    homes, *sizes = header["memory"]
    memory, needs = MemoryPlan(tuple((Home(home), place) for home, place in homes), *sizes), header["needs"]
    program_needs = ProgramNeeds(Arithmetic(**needs["arithmetic"]), needs["memory_bytes"], tuple(needs["operations"]))
    resources = arenas, device_memory, threads
    return FakeNpuProgram(graph, memory, program_needs, *resources, unshared_bytes=weights.nbytes)


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
