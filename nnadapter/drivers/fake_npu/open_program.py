"""Programs with dynamic shapes: lowering with symbolic sizes, and execution at concrete ones.

What an instruction does is decided by numbers, so instructions of other sizes are bound again; the others stay. Tensors
whose sizes change get room to grow in the arena, so that a size that grows by one at each run moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from nnadapter.drivers.arenas import Arena, Arenas
from nnadapter.drivers.fake_npu.binding import Bound
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.execution import FakeNpuExecution
from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.program import arena_bytes, bound_bytes
from nnadapter.drivers.fake_npu.sized_binding import Layout, SizedBinding
from nnadapter.drivers.fake_npu.traced_graph import TracedGraph
from nnadapter.drivers.fake_npu.tracing import InstructionEvents
from nnadapter.drivers.interface import Execution, Program
from nnadapter.errors import DriverError
from nnadapter.ir.operand import Array


class FakeNpuOpenProgram(Program):
    """A lowered model whose sizes are traced numbers; any number of executions may run side by side.

    Args:
        graph: traced, without scratch memory.
        available_bytes: of the arena, at most.
        arenas: of the context.
        device_memory: of the device.
        threads: of BLAS.
        packed: what was made of weights, see `packed_bytes`.
        events: makes the instructions of a graph events of a trace; None where there is none.
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
        self._traced = TracedGraph(graph)
        self._available_bytes = available_bytes
        self._last: tuple[Sequence[Any], SizedBinding] | None = None
        """The sizes that came last, and the binding at these."""
        self._around, self._packed, self._events = (arenas, device_memory, threads), packed, events

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: as of a program for the sizes that came last; without an arena as yet."""
        last = self._last
        return bound_bytes(self._traced.graph, 0 if last is None else last[1].frame.memory.arena_bytes)

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`: packed weights, and the arenas of the context."""
        return {**self._packed, **arena_bytes(self._around[0])}

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return FakeNpuOpenExecution(self)

    def execution_at(self, sizes: Sequence[Any], holder: object) -> Execution:
        """An execution at these sizes, of which everything that is bound belongs to `holder`.

        Raises:
            OutOfMemoryError: it needs more memory than the device has.
        """
        sized = self._at(sizes)
        return _SizedExecution(sized, holder, *self._around, self._events and self._events(sized.graph))

    def _at(self, sizes: Sequence[Any]) -> SizedBinding:
        last = self._last
        if last is not None and last[0] is sizes:
            return last[1]
        numbers = self._traced.numbers(sizes)
        sized = None if last is None else last[1].resized(numbers)
        if sized is None:
            sized = SizedBinding(Layout.at(self._traced, numbers, self._available_bytes), numbers, {})
        self._last = sizes, sized
        return sized


class FakeNpuOpenExecution(Execution):
    """Runs a program for many sizes, each time in the arena that is lent to it."""

    def __init__(self, program: FakeNpuOpenProgram) -> None:
        self._program = program

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`: nothing is computed as long as sizes are not known.

        Raises:
            DriverError: always.
        """
        raise DriverError("the program leaves sizes open: say by `specialize` what they are")

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.specialize`."""
        return self._program.execution_at(sizes, self)


class _SizedExecution(FakeNpuExecution):
    """A run at some sizes; what is bound belongs to the execution for all sizes."""

    def __init__(self, sized: SizedBinding, holder: object, *around: Any) -> None:
        super().__init__(sized, *around)
        self._sized, self._open_execution = sized, holder

    def _holder(self) -> object:
        return self._open_execution

    def _bound(self, arena: Arena) -> Bound:
        sized = self._sized
        last, bound = arena.bound.get(self._open_execution, (None, None))
        if last is sized:
            return bound  # type: ignore[no-any-return]
        if last is None or last.layout is not sized.layout:
            bound = sized.bound(arena.bytes)
        else:
            bound = sized.bound_after(arena.bytes, last, bound)
        arena.bound[self._open_execution] = sized, bound
        return bound
