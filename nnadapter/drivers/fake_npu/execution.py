"""Running a program: every instruction bound once to the arena that it computes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

import numpy as np

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory, FakeNpuMemory
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.kernels.elementwise import bind_activation
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, Run
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan
from nnadapter.drivers.fake_npu.threads import BLAS_THREADS, Computation
from nnadapter.drivers.fake_npu.tracing import InstructionEvents
from nnadapter.drivers.interface import DeviceTensor, Execution
from nnadapter.errors import CancelledError
from nnadapter.ir.operand import Array
from nnadapter.memory.arenas import Arena, Arenas

Bound = tuple[list[Array | None], list[Run]]
"""The array of every tensor, None for the caller's, and every instruction bound to those."""


class Binding:
    """The instructions of a graph and the memory that they compute in.

    Instructions that touch a model input or output are bound in each run, because those arrays are the caller's; all
    others are bound once per arena.
    """

    def __init__(self, graph: NpuGraph, memory: MemoryPlan) -> None:
        self.graph, self.memory = graph, memory
        callers = (Home.INPUT, Home.OUTPUT)
        self._foreign = [tensor for tensor, (home, _) in enumerate(memory.homes) if home in callers]
        foreign = frozenset(self._foreign)
        self._rebound = {
            position: None
            for position, instruction in enumerate(graph.instructions)
            if not foreign.isdisjoint((*instruction.inputs, *instruction.outputs))
        }

    def resized(self, graph: NpuGraph) -> Binding:
        """The same for a graph of other sizes, whose tensors lie at the same places."""
        binding = copy(self)
        binding.graph = graph
        return binding

    def bound(self, arena: Array) -> Bound:
        """Everything that can be bound before a run."""
        arrays = [self._resident(tensor, arena) for tensor in range(len(self.graph.tensors))]
        runs = [
            _unbound if position in self._rebound else bind(instruction, arrays)
            for position, instruction in enumerate(self.graph.instructions)
        ]
        return arrays, runs

    def bound_again(self, arena: Array, before: Bound, tensors: Iterable[int], instructions: Iterable[int]) -> Bound:
        """The same after these tensors and instructions have changed."""
        arrays, runs = before[0].copy(), before[1].copy()
        for tensor in tensors:
            arrays[tensor] = self._resident(tensor, arena)
        for position in instructions:
            if position not in self._rebound:
                runs[position] = bind(self.graph.instructions[position], arrays)
        return arrays, runs

    def runs(self, before: Bound, inputs: Sequence[Array], results: Sequence[Array]) -> list[Run]:
        """Every instruction bound, with these arrays of the caller's; nothing of them outlives what is returned."""
        callers = {Home.INPUT: inputs, Home.OUTPUT: results}
        arrays, runs = before[0].copy(), before[1].copy()
        for tensor in self._foreign:
            home, position = self.memory.homes[tensor]
            arrays[tensor] = callers[home][position].reshape(self.graph.tensors[tensor].type.dimensions)
        for position in self._rebound:
            runs[position] = bind(self.graph.instructions[position], arrays)
        return runs

    def _resident(self, tensor: int, arena: Array) -> Array | None:
        """The array of a tensor that stays where it is, None for the caller's."""
        graph_tensor = self.graph.tensors[tensor]
        if graph_tensor.value is not None:
            return graph_tensor.value
        home, offset = self.memory.homes[tensor]
        if home is not Home.ARENA:
            return None
        return (
            arena[offset : offset + graph_tensor.type.nbytes]
            .view(graph_tensor.type.dtype)
            .reshape(graph_tensor.type.dimensions)
        )


class FakeNpuExecution(Execution):
    """The instructions of a program, bound to the arena that is lent to them, nearly always the same one."""

    def __init__(
        self,
        binding: Binding,
        arenas: Arenas,
        device_memory: DeviceMemory,
        threads: int,
        events: InstructionEvents | None = None,
    ) -> None:
        self._binding = binding
        self._arenas = arenas
        self._device_memory = device_memory
        self._threads = threads
        self._events = events

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self.compute_within(inputs, UNLIMITED)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: `control` is asked before every instruction.

        Raises:
            CancelledError: nobody wants the results any more.
        """
        results = [np.empty(*_shape_and_type(self._binding.graph, tensor)) for tensor in self._binding.graph.outputs]
        self._fill(results, inputs, control)
        return results

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`."""
        self._fill(outputs, inputs, UNLIMITED)
        return outputs

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        given = [_placed(tensor) for tensor in inputs]
        made: list[DeviceTensor] = []
        try:
            for number in self._binding.graph.outputs:
                made.append(self._device_memory.tensor(*_shape_and_type(self._binding.graph, number)))
            self._fill([_placed(tensor) for tensor in made], given, control)
        except BaseException:
            for tensor in made:
                tensor.memory.free()
            raise
        return made

    def _fill(self, results: Sequence[Array], inputs: Sequence[Array], control: Control) -> None:
        """Compute the outputs into these arrays."""
        with self._arenas.lent(self._binding.memory.arena_bytes, self._holder()) as arena:
            runs = self._binding.runs(self._bound(arena), inputs, results)
            if self._events is not None:
                runs = self._events.of(runs)
            # Kernels overflow on purpose where the limit is the right result; the caller's settings are put back.
            with np.errstate(all="ignore"):
                _compute(runs if control.cancelled is None else _while_wanted(runs, control.cancelled), self._threads)

    def _holder(self) -> object:
        """Who is bound to an arena."""
        return self

    def _bound(self, arena: Arena) -> Bound:
        bound: Bound | None = arena.bound.get(self)
        if bound is None:
            bound = arena.bound[self] = self._binding.bound(arena.bytes)
        return bound


def bind(instruction: Instruction, arrays: Sequence[Array | None]) -> Run:
    """Bind one instruction to its arrays."""
    inputs, outputs, scratch = (
        tuple(_present(arrays[tensor]) for tensor in group)
        for group in (instruction.inputs, instruction.outputs, instruction.scratch)
    )
    finish = None
    if instruction.activation is not None:
        own = len(scratch) - FUNCTIONS[instruction.activation.function].temporaries
        finish, scratch = bind_activation(instruction.activation, scratch[own:]), scratch[:own]
    call = KernelArguments(
        inputs=inputs, outputs=outputs, scratch=scratch, parameters=instruction.parameters, finish=finish
    )
    return KERNELS[instruction.kernel].bind(call)


def _placed(tensor: DeviceTensor) -> Array:
    assert isinstance(tensor.memory, FakeNpuMemory), "memory of a device is its own"
    return tensor.memory.view(tensor.shape, tensor.dtype)


def _compute(runs: Iterable[Run], threads: int) -> None:
    computation, blas = Computation(threads), BLAS_THREADS
    try:
        computation.begin()
        for run in runs:
            if blas.is_asked:
                computation.make_room()
            run()
    finally:
        blas.users.pop(computation, None)
        computation.end()


def _while_wanted(runs: Sequence[Run], cancelled: Callable[[], bool]) -> Iterator[Run]:
    for position, run in enumerate(runs):
        if cancelled():
            raise CancelledError(f"fake_npu was stopped before instruction {position} of {len(runs)}")
        yield run


def _present(array: Array | None) -> Array:
    assert array is not None, "an instruction that touches the caller's arrays is bound before they are known"
    return array


def _unbound() -> None:
    """Stands for an instruction that each run binds anew."""


def _shape_and_type(graph: NpuGraph, tensor: int) -> tuple[tuple[int, ...], str]:
    type_ = graph.tensors[tensor].type
    return type_.dimensions, type_.dtype
