"""Execution: instructions bound to arrays, run in an arena acquired per run.

The option `threads` limits BLAS threads, a setting of the process. The lowest limit of running computations applies,
and the last computation restores the setting. After an interrupt, `settle` sets the limit again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.arenas import Arena, Arenas
from nnadapter.drivers.fake_npu.graph import Activation, Instruction, NpuGraph
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.kernels.kernel import Run, apply
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan
from nnadapter.drivers.fake_npu.streams import DeviceMemory, FakeNpuMemory, FakeNpuStream
from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Execution, Stream
from nnadapter.errors import CancelledError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import memoize, new_re_lock, register_after_fork
from nnadapter.traces.trace import ENGINE, Trace

_UNSETTLED = -1


class BlasThreads:
    """Limit of BLAS threads for each running computation. Thread-safe, also in signal handlers."""

    def __init__(self) -> None:
        self.limits: dict[object, int] = {}
        self._lock = new_re_lock()
        self._is_setting = False
        self._number = 0
        self._before: list[tuple[Any, int]] = []
        """Number of threads of each pool before the first limit."""

    def settle(self) -> None:
        while self._lowest() != self._number:
            with self._lock:
                if self._is_setting:  # in a signal handler: the interrupted call repeats
                    return
                try:
                    self._is_setting = True
                    self._set(self._lowest())
                finally:
                    self._is_setting = False

    def after_fork(self) -> None:
        """Restore the setting; no computation runs in a forked process."""
        self._is_setting = False
        self.limits.clear()
        self.settle()

    def _lowest(self) -> int:
        return min(list(self.limits.values()), default=0)

    def _set(self, number: int) -> None:
        if not self._number:
            self._before = [(pool, pool.get_num_threads()) for pool in _pools()]
        self._number = _UNSETTLED  # stays so after an interrupt
        for pool, count in self._before:
            pool.set_num_threads(min(number, count) if number else count)
        self._number = number


BLAS_THREADS = BlasThreads()
register_after_fork(BLAS_THREADS)


def run_limited(steps: Iterable[Callable[[], object]], limit: int) -> None:
    """Run steps with at most `limit` BLAS threads; 0 means no limit."""
    if not limit:
        for step in steps:
            step()
        return
    computation, threads = object(), BLAS_THREADS
    try:
        threads.limits[computation] = limit
        threads.settle()
        for step in steps:
            step()
    finally:
        try:
            threads.limits.pop(computation, None)
            threads.settle()
        except BaseException:  # an interrupt between the two steps
            threads.settle()
            raise


@memoize(1)
def _pools() -> list[Any]:
    """Return OpenBLAS's thread pools, except with OpenMP: there, a thread can set only its own pool."""
    from threadpoolctl import ThreadpoolController  # lazy: the search for libraries is slow

    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    return [library for library in libraries if library.threading_layer == "pthreads"]


class Resources(NamedTuple):
    """Resources that all programs of a context share."""

    arenas: Arenas
    memory: DeviceMemory
    threads: int = 0
    """Limit of BLAS threads; 0 means none."""


_UNBOUND: Run = int
Bound = tuple[list[Any], list[Run]]
"""Array of every tensor (None for the caller's), and bound instructions."""


class Binding:
    """Binding of a graph's instructions to arrays.

    Instructions on model inputs or outputs are bound per run, to the caller's arrays; others per arena.
    """

    def __init__(self, graph: NpuGraph, memory: MemoryPlan) -> None:
        self.graph, self.memory = graph, memory
        callers = (Home.INPUT, Home.OUTPUT)
        self._foreign = [(tensor, *place) for tensor, place in enumerate(memory.homes) if place[0] in callers]
        """Tensors in the caller's arrays: tensor, memory kind, position."""
        tensors = {tensor for tensor, _, _ in self._foreign}
        self._rebound = [
            position
            for position, instruction in enumerate(graph.instructions)
            if not tensors.isdisjoint((*instruction.inputs, *instruction.outputs))
        ]

    def outputs(self) -> list[tuple[tuple[int, ...], str]]:
        types = (self.graph.tensors[tensor].type for tensor in self.graph.outputs)
        return [(type_.dimensions, type_.dtype) for type_ in types]

    def bound(self, arena: Array) -> Bound:
        """Bind tensors and instructions, except the caller's arrays and their instructions."""
        graph, unbound = self.graph, set(self._rebound)
        arrays = [self._resident(tensor, arena) for tensor in range(len(graph.tensors))]
        return arrays, [
            _UNBOUND if position in unbound else bind(instruction, arrays)
            for position, instruction in enumerate(graph.instructions)
        ]

    def bound_again(self, arena: Array, previous: Bound, tensors: Iterable[int], instructions: Iterable[int]) -> Bound:
        arrays, runs = previous[0].copy(), previous[1].copy()
        for tensor in tensors:
            arrays[tensor] = self._resident(tensor, arena)
        unbound = set(self._rebound)
        for position in instructions:
            if position not in unbound:
                runs[position] = bind(self.graph.instructions[position], arrays)
        return arrays, runs

    def resized(self, graph: NpuGraph) -> Binding:
        other = copy(self)
        other.graph = graph
        return other

    def runs(self, resident: Bound, inputs: Sequence[Array], results: Sequence[Array]) -> list[Run]:
        """Return all instructions. Instructions on model inputs or outputs are bound to the caller's arrays."""
        arrays, runs = resident[0].copy(), resident[1].copy()
        for tensor, home, position in self._foreign:
            array = (inputs if home is Home.INPUT else results)[position]
            arrays[tensor] = array.reshape(self.graph.tensors[tensor].type.dimensions)
        for position in self._rebound:
            runs[position] = bind(self.graph.instructions[position], arrays)
        return runs

    def _resident(self, tensor: int, arena: Array) -> Array | None:
        home, offset = self.memory.homes[tensor]
        description = self.graph.tensors[tensor]
        if home is Home.ARENA:
            return np.ndarray(description.type.dimensions, description.type.dtype, arena, offset)
        return description.value


def bind(instruction: Instruction, arrays: Sequence[Any]) -> Run:
    """Return an instruction as a call; `arrays` has one array per tensor."""
    parameters, activation = instruction.parameters, instruction.activation
    outputs, inputs = ([arrays[tensor] for tensor in group] for group in (instruction.outputs, instruction.inputs))
    if activation is not None:
        parameters = {**parameters, "finish": partial(_apply, activation)}
    if "roles" in parameters:
        parameters = {**parameters, **dict(zip(parameters["roles"], inputs, strict=True))}
        inputs = []
        del parameters["roles"]
    return partial(KERNELS[instruction.kernel].run, *outputs, *inputs, **parameters)


def _apply(activation: Activation, array: Array) -> None:
    apply(activation.function, array, array, activation.parameters)


class InstructionEvents:
    """Trace events of instructions."""

    def __init__(self, trace: Trace, lane: str, graph: NpuGraph) -> None:
        self._trace, self._lane = trace, lane
        self._notes = [(instruction.kernel, _facts(instruction, graph)) for instruction in graph.instructions]

    def of(self, runs: list[Run]) -> list[Run]:
        if not self._trace.reserve_events(len(runs)):
            return runs
        return [partial(self._run, run, *note) for run, note in zip(runs, self._notes, strict=True)]

    def _run(self, run: Run, kernel: str, facts: Mapping[str, Any]) -> None:
        start = self._trace.timestamp()
        run()
        self._trace.add(self._lane, ENGINE, kernel, start, facts)


def _facts(instruction: Instruction, graph: NpuGraph) -> Mapping[str, Any]:
    fused = {} if instruction.activation is None else {"activation": instruction.activation.function}
    shapes = {
        name: [f"{graph.tensors[tensor].type.dtype}{list(graph.tensors[tensor].type.dimensions)}" for tensor in tensors]
        for name, tensors in (("inputs", instruction.inputs), ("outputs", instruction.outputs))
    }
    return {**shapes, **fused}


class FakeNpuExecution(Execution):
    """Execution of a program; nearly every run acquires the same arena."""

    def __init__(self, binding: Binding, resources: Resources, events: InstructionEvents | None = None) -> None:
        self._binding, self._resources, self._events = binding, resources, events

    @property
    def _holder(self) -> object:
        return self

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self.compute_within(inputs, UNLIMITED)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        results = [np.empty(*form) for form in self._binding.outputs()]
        self._fill(results, inputs, control)
        return results

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        self._fill(outputs, inputs, UNLIMITED)
        return outputs

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        return self._on_device(inputs, control, lambda run: run())

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        assert isinstance(stream, FakeNpuStream), "streams of a device are its own"
        return self._on_device(inputs, control, stream.submit)

    def _on_device(
        self, inputs: Sequence[DeviceTensor], control: Control, start: Callable[[Callable[[], None]], None]
    ) -> list[DeviceTensor]:
        outputs: list[DeviceTensor] = []
        try:
            for form in self._binding.outputs():
                outputs.append(self._resources.memory.tensor(*form))
            arrays = [_placed(tensor) for tensor in outputs], [_placed(tensor) for tensor in inputs]
            start(partial(self._fill, *arrays, control))
        except BaseException:
            for tensor in outputs:
                tensor.memory.free()
            raise
        return outputs

    def _fill(self, results: Sequence[Array], inputs: Sequence[Array], control: Control) -> None:
        with self._resources.arenas.acquire(self._binding.memory.arena_bytes, self._holder) as arena:
            runs = self._binding.runs(self._bound(arena), inputs, results)
            if self._events is not None:
                runs = self._events.of(runs)
            # Kernels may overflow if infinity leads to the right limit.
            with np.errstate(all="ignore"):
                steps = runs if control.cancelled is None else _until_cancelled(runs, control.cancelled)
                run_limited(steps, self._resources.threads)

    def _bound(self, arena: Arena) -> Bound:
        bound: Bound | None = arena.bound.get(self)
        if bound is None:
            bound = arena.bound[self] = self._binding.bound(arena.bytes)
        return bound


def _placed(tensor: DeviceTensor) -> Array:
    assert isinstance(tensor.memory, FakeNpuMemory), "memory of a device is its own"
    return tensor.memory.view(tensor.shape, tensor.dtype)


def _until_cancelled(runs: Sequence[Run], cancelled: Callable[[], bool]) -> Iterator[Run]:
    for position, run in enumerate(runs):
        if cancelled():
            raise CancelledError(f"the run was cancelled on fake_npu before instruction {position} of {len(runs)}")
        yield run
