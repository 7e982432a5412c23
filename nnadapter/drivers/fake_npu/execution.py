"""Running a program: one arena, every instruction bound to it once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.buffers import ALIGNMENT
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.kernels.elementwise import bind_activation
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS
from nnadapter.drivers.fake_npu.kernels.kernel import Call, Run
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan
from nnadapter.drivers.interface import Execution
from nnadapter.ir.operand import Array


class FakeNpuExecution(Execution):
    """One arena and the instructions bound to it.

    Instructions that touch a model input or output are bound in each run, because those arrays are the caller's;
    all others are bound once.
    """

    def __init__(self, graph: NpuGraph, memory: MemoryPlan) -> None:
        self._graph = graph
        self._memory = memory
        arena = _aligned(memory.arena_bytes)
        self._arrays = [self._resident(tensor, arena) for tensor in range(len(graph.tensors))]
        self._foreign = [tensor for tensor, array in enumerate(self._arrays) if array is None]
        foreign = frozenset(self._foreign)
        self._rebound = [
            position
            for position, instruction in enumerate(graph.instructions)
            if not foreign.isdisjoint((*instruction.inputs, *instruction.outputs))
        ]
        rebound = frozenset(self._rebound)
        self._runs = [
            _unbound if position in rebound else bind(instruction, self._arrays)
            for position, instruction in enumerate(graph.instructions)
        ]

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        tensors = self._graph.tensors
        results = [np.empty(*_shape_and_type(self._graph, tensor)) for tensor in self._graph.outputs]
        callers = {Home.INPUT: inputs, Home.OUTPUT: results}
        # Copies, so that nothing of the caller's outlives this call.
        arrays, runs = self._arrays.copy(), self._runs.copy()
        for tensor in self._foreign:
            home, position = self._memory.homes[tensor]
            type_ = tensors[tensor].type
            arrays[tensor] = callers[home][position].reshape(type_.dimensions)
        for position in self._rebound:
            runs[position] = bind(self._graph.instructions[position], arrays)
        # Kernels overflow on purpose where the limit is the right result; the caller's settings are put back.
        with np.errstate(all="ignore"):
            for run in runs:
                run()
        return results

    def close(self) -> None:
        """See `Execution.close`."""
        self._runs.clear()
        self._arrays.clear()

    def _resident(self, tensor: int, arena: Array) -> Array | None:
        """The array of a tensor that stays where it is, None for the caller's."""
        found = self._graph.tensors[tensor]
        if found.value is not None:
            return found.value
        home, offset = self._memory.homes[tensor]
        if home is not Home.ARENA:
            return None
        return arena[offset : offset + found.type.nbytes].view(found.type.dtype).reshape(found.type.dimensions)


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
    call = Call(inputs=inputs, outputs=outputs, scratch=scratch, parameters=instruction.parameters, finish=finish)
    return KERNELS[instruction.kernel].bind(call)


def _present(array: Array | None) -> Array:
    assert array is not None, "an instruction that touches the caller's arrays is bound before they are known"
    return array


def _unbound() -> None:
    """Stands for an instruction that each run binds anew."""


def _shape_and_type(graph: NpuGraph, tensor: int) -> tuple[tuple[int, ...], str]:
    type_ = graph.tensors[tensor].type
    return type_.dimensions, type_.dtype


def _aligned(nbytes: int) -> Array:
    """Uninitialised bytes that start at a multiple of the arena's alignment."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]
