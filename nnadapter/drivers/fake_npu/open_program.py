"""Programs with dynamic shapes: a graph of symbolic sizes, specialized for one set of sizes after the other.

Tensors of dynamic sizes get room to grow in the arena, so that a size that grows by one at each run moves nothing. At
other sizes, instructions that depend on symbolic sizes are bound again; the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from nnadapter.drivers.arenas import Arena, Arenas
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.execution import Binding, Bound, FakeNpuExecution, InstructionEvents
from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor, TensorType
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.program import arena_bytes, bound_bytes
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import DriverError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.ir.symbolic_numbers import Interned, is_symbolic


class SymbolicGraph:
    """A device graph whose sizes are symbolic."""

    def __init__(self, graph: NpuGraph) -> None:
        self.graph = graph
        self._numbers = Interned()
        self._types: dict[tuple[str, int], int] = {}
        """Symbolic types, by data type and position of the dimensions among the numbers."""
        self.kinds: dict[int, int] = {}
        """The type of each tensor of symbolic size: equal if the types are equal at all sizes."""
        for index, tensor in enumerate(graph.tensors):
            if is_symbolic(dimensions := tensor.type.dimensions):
                type_ = tensor.type.dtype, self._numbers.add(dimensions)
                self.kinds[index] = self._types.setdefault(type_, len(self._types))
        self._parameters: Mapping[int, Mapping[str, int]] = {
            index: {name: self._numbers.add(value) for name, value in instruction.parameters.items()}
            for index, instruction in enumerate(graph.instructions)
            if any(map(is_symbolic, instruction.parameters.values()))
        }
        """Positions of the parameters of instructions that have symbolic ones."""
        self.instructions = [
            index
            for index, instruction in enumerate(graph.instructions)
            if index in self._parameters or self.kinds.keys() & {*instruction.inputs, *instruction.outputs}
        ]
        """Instructions that depend on symbolic sizes."""

    def specialize(self, replay_values: Sequence[Any]) -> NpuGraph:
        """Return the graph with the numbers of a replay."""
        if not (self.kinds or self._parameters):
            return self.graph
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
        """Place a specialized graph with room for about twice its sizes, or without room if memory is short.

        Returns:
            The plan, and the bytes of every tensor of symbolic size.

        Raises:
            OutOfMemoryError: the arena is larger than the available memory.
        """
        needed = {tensor: graph.tensors[tensor].type.nbytes for tensor in self.kinds}
        room = {tensor: 1 << nbytes.bit_length() for tensor, nbytes in needed.items()}
        memory = plan_memory(graph, self.kinds, room)
        if memory.arena_bytes > available_bytes:
            room, memory = needed, plan_memory(graph, self.kinds)
        if memory.arena_bytes > available_bytes:
            raise OutOfMemoryError(
                f"at these sizes the segment needs {memory.arena_bytes} bytes for the arena, available: "
                f"{available_bytes}; the option memory_bytes sets it"
            )
        return memory, room


class FakeNpuOpenProgram(Program):
    """A lowered model of symbolic sizes; any number of executions may run at the same time.

    Args:
        graph: of symbolic sizes.
        available_bytes: most bytes of the arena.
        arenas: of the context.
        device_memory: of the device.
        threads: most threads of BLAS.
        packed: bytes of packed weights, see `packed_bytes`.
        events: trace events of a graph; None without a trace.
    """

    def __init__(
        self,
        graph: NpuGraph,
        available_bytes: int,
        arenas: Arenas,
        device_memory: DeviceMemory,
        threads: int,
        packed: Mapping[Hashable, int],
        events: Callable[[NpuGraph], InstructionEvents] | None = None,
    ) -> None:
        self.symbolic = SymbolicGraph(graph)
        self._available_bytes = available_bytes
        self._last: tuple[Sequence[Any], Binding, Mapping[int, int]] | None = None
        """The last sizes, their binding, and the bytes of tensors of symbolic size."""
        self._resources, self._packed, self._events = (arenas, device_memory, threads), packed, events

    @property
    def memory_bytes(self) -> int:
        return bound_bytes(self.symbolic.graph)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return {**self._packed, **arena_bytes(self._resources[0])}

    def create_execution(self) -> Execution:
        return FakeNpuOpenExecution(self)

    def execution_at(self, sizes: Sequence[Any], holder: FakeNpuOpenExecution) -> Execution:
        """Return an execution at these sizes, whose bound instructions belong to `holder`.

        Raises:
            OutOfMemoryError: it needs more memory than the device has.
        """
        binding = self._binding(sizes)
        events = self._events and self._events(binding.graph)
        return _SizedExecution(self.symbolic, holder, binding, *self._resources, events)

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


class FakeNpuOpenExecution(Execution):
    """An execution for many sizes."""

    def __init__(self, program: FakeNpuOpenProgram) -> None:
        self._program = program

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        raise DriverError("the program leaves sizes open: say by `specialize` what they are")

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        return self._program.execution_at(sizes, self)


class _SizedExecution(FakeNpuExecution):
    """A run at some sizes; bound instructions belong to the execution for all sizes."""

    def __init__(self, symbolic: SymbolicGraph, holder: object, binding: Binding, *resources: Any) -> None:
        super().__init__(binding, *resources)
        self._symbolic, self._open_execution = symbolic, holder

    def _holder(self) -> object:
        return self._open_execution

    def _bound(self, arena: Arena) -> Bound:
        binding, bound = self._binding, None
        last: tuple[Binding, Bound] | None = arena.bound.get(self._open_execution)
        if last is None or last[0].memory is not binding.memory:
            bound = binding.bound(arena.bytes)
        elif last[0] is not binding:
            bound = binding.bound_again(arena.bytes, last[1], self._symbolic.kinds, self._symbolic.instructions)
        else:
            return last[1]
        arena.bound[self._open_execution] = binding, bound
        return bound
