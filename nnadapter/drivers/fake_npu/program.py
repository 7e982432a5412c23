"""Compiled programs, their executions and their memory footprint.

The compiled form: device graph, memory plan and packed weights, and all of it as bytes.

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


class ProgramNeeds(NamedTuple):
    """Requirements of a compiled program on its context."""

    arithmetic: Arithmetic
    memory_bytes: int
    """Bytes of device memory for weights, the arena, inputs and outputs."""
    operations: tuple[str, ...]
    """Adapter IR types that must not be switched off, sorted."""

    def check(self, options: FakeNpuOptions) -> None:
        """Check that a context of these options would compile the model to the same program.

        Raises:
            IncompatibleProgramError: another arithmetic, too little memory, or an operation that is switched off.
        """
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


_BYTES_PER_INSTRUCTION = 4 << 10
"""Measured on networks of 20 to 150 instructions, by the growth of the process from plan to plan."""


def bound_bytes(graph: NpuGraph) -> int:
    """Return about the bytes of bound instructions, which are Python objects."""
    return _BYTES_PER_INSTRUCTION * len(graph.instructions)


def packed_bytes(graph: NpuGraph, model: Model) -> Mapping[Hashable, int]:
    """What was made of weights, by array; weights as the model has them are the model's."""
    held = {id(_owner(operand.value)) for operand in model.operands if operand.value is not None}
    owners = [_owner(tensor.value) for tensor in graph.tensors if tensor.value is not None]
    return {id(owner): owner.nbytes for owner in owners if id(owner) not in held}


def arena_bytes(arenas: Arenas) -> Mapping[Hashable, int]:
    """The arenas of a context, in which its programs take turns."""
    return {("arenas", id(arenas)): arenas.used_bytes}


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


MAGIC = b"FAKENPU\0"
VERSION = 7
"""Raised whenever a kernel's packing or parameters change, so that older programs are compiled anew."""

_ENVELOPE = Envelope(magic=MAGIC, version=VERSION)
_ALIGNMENT = 64


class FakeNpuProgram(Program):
    """A model placed in memory; frozen, so any number of executions may run side by side."""

    def __init__(
        self,
        graph: NpuGraph,
        memory: MemoryPlan,
        arenas: Arenas,
        needs: ProgramNeeds,
        *,
        device_memory: DeviceMemory,
        threads: int,
        packed: Mapping[Hashable, int] | None = None,
        unshared_bytes: int = 0,
        events: InstructionEvents | None = None,
    ) -> None:
        self.graph = graph
        self.memory = memory
        self.needs = needs
        self._arenas = arenas
        self._device_memory = device_memory
        self._threads = threads
        self._packed, self._unshared_bytes = packed or {}, unshared_bytes
        self._events = events

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: the weights where they are this program's own, and bound instructions."""
        return self.execution_bytes + self._unshared_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return bound_bytes(self.graph)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`: packed weights, and the arenas of the context."""
        return {**self._packed, **arena_bytes(self._arenas)}

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        binding = Binding(self.graph, self.memory)
        return FakeNpuExecution(binding, self._arenas, self._device_memory, self._threads, self._events)

    def serialize(self) -> bytes:
        """See `Program.serialize`."""
        weights = _Weights()
        header = json.dumps(
            {
                "byteorder": sys.byteorder,
                "needs": {**self.needs._asdict(), "arithmetic": self.needs.arithmetic._asdict()},
                "tensors": [_tensor_row(tensor, weights) for tensor in self.graph.tensors],
                "instructions": [_instruction_row(instruction) for instruction in self.graph.instructions],
                "inputs": self.graph.inputs,
                "outputs": self.graph.outputs,
                "homes": self.memory.homes,
                "arena_bytes": self.memory.arena_bytes,
                "arena_lower_bound_bytes": self.memory.arena_lower_bound_bytes,
            }
        ).encode()
        header += bytes(-(PREFIX_BYTES + len(header)) % _ALIGNMENT)
        return _ENVELOPE.close(header, weights.parts)


def weight_bytes(graph: NpuGraph) -> int:
    """Bytes of all constants, each counted once."""
    places = {_place(tensor.value) for tensor in graph.tensors if tensor.value is not None}
    return sum(nbytes + -nbytes % _ALIGNMENT for _, nbytes in places)


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
    header, weights = _opened(*_ENVELOPE.open(blob, is_checked=is_checked))
    graph = NpuGraph(
        tuple(_read_tensor(row, weights) for row in header["tensors"]),
        tuple(_read_instruction(row) for row in header["instructions"]),
        tuple(header["inputs"]),
        tuple(header["outputs"]),
    )
    homes = tuple((Home(home), position) for home, position in header["homes"])
    memory = MemoryPlan(homes, header["arena_bytes"], header["arena_lower_bound_bytes"])
    needs = header["needs"]
    needs = ProgramNeeds(
        arithmetic=Arithmetic(**needs["arithmetic"]),
        memory_bytes=needs["memory_bytes"],
        operations=tuple(needs["operations"]),
    )
    return FakeNpuProgram(
        graph,
        memory,
        arenas,
        needs,
        device_memory=device_memory,
        threads=threads,
        unshared_bytes=weights.nbytes,
    )


def _opened(written: bytes, weights: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Read the header, and check what the weights are."""
    header = json.loads(written.rstrip(b"\0"))
    if header["byteorder"] != sys.byteorder:
        byte_order = header["byteorder"]
        raise IncompatibleProgramError(
            f"the program's weights are {byte_order}-endian, expected {sys.byteorder}; {ADVICE}"
        )
    return header, weights


def _place(value: Array) -> tuple[int, int]:
    """Address and bytes of a constant; what was not computed yet has no address."""
    if isinstance(value, DeferredArray):
        return -id(value), value.nbytes
    return value.__array_interface__["data"][0], value.nbytes


class _Weights:
    """Constants in the order in which they are written, each once."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.nbytes = 0
        self._offsets: dict[tuple[int, int], int] = {}

    def add(self, value: Array) -> int:
        """The offset of a constant; views of the same memory share one."""
        key = _place(value)
        if key not in self._offsets:
            self._offsets[key] = self.nbytes
            padding = bytes(-value.nbytes % _ALIGNMENT)
            self.parts += [value.reshape(-1).view(np.uint8).data, padding]
            self.nbytes += value.nbytes + len(padding)
        return self._offsets[key]


def _tensor_row(tensor: NpuTensor, weights: _Weights) -> list[Any]:
    offset = None if tensor.value is None else weights.add(tensor.value)
    return [tensor.type.dtype, tensor.type.dimensions, tensor.view_of, offset]


def _read_tensor(row: list[Any], weights: memoryview) -> NpuTensor:
    dtype, dimensions, view_of, offset = row
    type_ = TensorType(dtype, tuple(dimensions))
    if offset is None:
        return NpuTensor(type_, view_of=view_of)
    value = np.frombuffer(weights, dtype, type_.size, offset).reshape(type_.dimensions)
    return NpuTensor(type_, value)


def _instruction_row(instruction: Instruction) -> list[Any]:
    activation = instruction.activation
    fused = None if activation is None else [activation.function, activation.parameters]
    return [
        instruction.kernel,
        instruction.inputs,
        instruction.outputs,
        dict(instruction.parameters),
        fused,
    ]


def _read_instruction(row: list[Any]) -> Instruction:
    kernel, inputs, outputs, parameters, fused = row
    return Instruction(
        kernel=kernel,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        parameters={name: _tuples(value) for name, value in parameters.items()},
        activation=None if fused is None else Activation(fused[0], tuple(fused[1])),
    )


def _tuples(value: Any) -> Any:
    """JSON has lists where parameters have tuples."""
    return tuple(value) if isinstance(value, list) else value
