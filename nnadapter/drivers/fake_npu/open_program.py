"""A program for many sizes: lowered once with traced numbers, and bound anew only where sizes are others.

What an instruction does is decided by numbers, so instructions of other sizes are bound again; the others stay. Tensors
whose sizes change get room to grow in the arena, so that a size that grows by one at each run moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.execution import Binding, Bound, FakeNpuExecution
from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor
from nnadapter.drivers.fake_npu.memory import plan_memory
from nnadapter.drivers.fake_npu.program import estimated_bytes
from nnadapter.drivers.fake_npu.scratch import may_want_scratch, scratch_of, with_scratch
from nnadapter.drivers.fake_npu.traced_graph import Changes, TracedGraph
from nnadapter.drivers.fake_npu.tracing import InstructionEvents
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import DriverError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.memory.arenas import Arena, Arenas
from nnadapter.process.cache import Cache

_SIZES = 4
"""Sets of sizes per program that are kept; the oldest goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where tensors lie, with room for larger ones."""

    binding: Binding
    """At the sizes for which it was made."""
    room: Sequence[int]
    """Bytes that tensors may need, by the numbers of their types (`TracedGraph.kinds`)."""
    scratch_room: Mapping[int, int]
    """Bytes that scratch memory of other sizes at other times may need."""


@dataclass(slots=True, eq=False)
class Sized:
    """The program at one set of sizes."""

    layout: Layout
    binding: Binding
    numbers: Sequence[Any]
    """What its graph was filled with."""
    before: Sized | None = None
    """The sizes that it was made from, as long as no others were made from it: a chain would hold them all."""
    changes: Changes | None = None
    """What is other than there."""


class FakeNpuOpenProgram(Program):
    """A lowered model whose sizes are traced numbers; any number of executions may run side by side.

    Args:
        graph: traced, without scratch memory.
        available_bytes: of the arena, at most.
        arenas: of the context.
        device_memory: of the device.
        threads: of BLAS.
        events: makes the instructions of a graph events of a trace; None where there is none.
    """

    def __init__(
        self,
        graph: NpuGraph,
        available_bytes: int,
        arenas: Arenas,
        device_memory: DeviceMemory,
        threads: int,
        events: Callable[[NpuGraph], InstructionEvents] | None = None,
    ) -> None:
        self._traced = TracedGraph(graph)
        self._available_bytes = available_bytes
        self._last: Sized | None = None
        self._sized: Cache[tuple[Any, ...], Sized] = Cache("fake_npu: open sizes", _SIZES)
        self._around, self._events = (arenas, device_memory, threads), events

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: as of a program for the sizes that came last; without an arena as yet."""
        last = self._last
        return estimated_bytes(self._traced.graph, 0 if last is None else last.binding.memory.arena_bytes)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return FakeNpuOpenExecution(self)

    def execution_at(self, sizes: Sequence[Any], holder: object) -> Execution:
        """An execution at these sizes, of which everything that is bound belongs to `holder`."""
        sized = self._at(sizes)
        return _SizedExecution(self, sized, holder, *self._around, self._events and self._events(sized.binding.graph))

    def _at(self, sizes: Sequence[Any]) -> Sized:
        """The program at these sizes.

        Raises:
            OutOfMemoryError: it needs more memory than the device has.
        """
        return self._sized.made(tuple(sizes), lambda: self._made(self._traced.numbers(sizes)))

    def changes(self, sized: Sized, before: Sized) -> Changes:
        """What is other at one set of sizes than at another of the same layout, scratch memory included."""
        changes = sized.changes
        if changes is None or sized.before is not before:
            changes = self._traced.changes(sized.numbers, before.numbers)
        instructions = sized.binding.graph.instructions
        scratch = [tensor for index in changes.instructions for tensor in instructions[index].scratch]
        return Changes(changes.types, [*changes.tensors, *scratch], changes.instructions)

    def _made(self, numbers: Sequence[Any]) -> Sized:
        last = self._last
        made = None if last is None else self._resized(last, numbers)
        if made is None:
            layout = self._laid_out(with_scratch(self._traced.filled_with(numbers)), numbers)
            made = Sized(layout, layout.binding, numbers)
        elif last is not None:
            last.before = last.changes = None
        self._last = made
        return made

    def _resized(self, last: Sized, numbers: Sequence[Any]) -> Sized | None:
        """The program where the layout has room for these sizes; None where it has not."""
        changes, layout = self._traced.changes(numbers, last.numbers), last.layout
        if any(self._traced.type_with(type_, numbers).nbytes > layout.room[type_] for type_ in changes.types):
            return None
        graph = self._traced.changed(last.binding.graph, numbers, changes)
        tensors = list(graph.tensors)
        for position in changes.instructions:
            instruction = graph.instructions[position]
            if not instruction.scratch and not may_want_scratch(instruction):
                continue
            wanted = scratch_of(graph, instruction)
            if len(wanted) != len(instruction.scratch):
                return None
            for tensor, type_ in zip(instruction.scratch, wanted, strict=True):
                if type_.nbytes > layout.scratch_room[tensor]:
                    return None
                tensors[tensor] = NpuTensor(type_)
        graph = NpuGraph(tuple(tensors), graph.instructions, graph.inputs, graph.outputs)
        return Sized(layout, last.binding.resized(graph), numbers, last, changes)

    def _laid_out(self, graph: NpuGraph, numbers: Sequence[Any]) -> Layout:
        traced = self._traced
        scratch = [tensor for position in traced.instructions for tensor in graph.instructions[position].scratch]
        needed = [traced.type_with(type_, numbers).nbytes for type_ in range(len(traced.types))]
        scratch_needed = {tensor: graph.tensors[tensor].type.nbytes for tensor in scratch}
        room = list(map(_doubled, needed))
        scratch_room = {tensor: _doubled(nbytes) for tensor, nbytes in scratch_needed.items()}
        rooms = {tensor: room[type_] for tensor, type_ in traced.kinds.items()} | scratch_room
        memory = plan_memory(graph, traced.kinds, rooms)
        if memory.arena_bytes > self._available_bytes:
            room, scratch_room, memory = needed, scratch_needed, plan_memory(graph, traced.kinds)
        if memory.arena_bytes > self._available_bytes:
            raise OutOfMemoryError(
                f"at these sizes the segment needs {memory.arena_bytes} bytes for the arena, available: "
                f"{self._available_bytes}; the option memory_bytes sets it"
            )
        return Layout(Binding(graph, memory), room, scratch_room)


def _doubled(nbytes: int) -> int:
    """Room to grow: the next power of two."""
    return 1 << nbytes.bit_length()


class FakeNpuOpenExecution(Execution):
    """Runs a program for many sizes, each time in the arena that is lent to it."""

    def __init__(self, program: FakeNpuOpenProgram) -> None:
        self._program = program

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`: nothing is computed as long as sizes are not known.

        Raises:
            DriverError: always.
        """
        raise DriverError("the program leaves sizes open: say by `at` what they are")

    def at(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.at`."""
        return self._program.execution_at(sizes, self)


class _SizedExecution(FakeNpuExecution):
    """A run at some sizes; what is bound belongs to the execution for all sizes."""

    def __init__(self, program: FakeNpuOpenProgram, sized: Sized, holder: object, *around: Any) -> None:
        super().__init__(sized.binding, *around)
        self._program, self._sized, self._open_execution = program, sized, holder

    def _holder(self) -> object:
        return self._open_execution

    def _bound(self, arena: Arena) -> Bound:
        sized = self._sized
        last, bound = arena.bound.get(self._open_execution, (None, None))
        if last is sized:
            return bound  # type: ignore[no-any-return]
        if last is None or last.layout is not sized.layout:
            bound = sized.binding.bound(arena.bytes)
        else:
            changes = self._program.changes(sized, last)
            bound = sized.binding.bound_again(arena.bytes, bound, changes.tensors, changes.instructions)
        arena.bound[self._open_execution] = sized, bound
        return bound
