"""Instructions bound to arrays: in memory that stays once per arena, to arrays of the caller in each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.kernels.elementwise import bind_activation
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, Run
from nnadapter.drivers.fake_npu.memory import Home, MemoryPlan
from nnadapter.ir.operand import Array

Bound = tuple[list[Any], list[Run]]
"""The array of every tensor, None for the caller's, and every instruction bound to those."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A graph in memory, and what of it is the caller's."""

    graph: NpuGraph
    memory: MemoryPlan
    dtypes: Sequence[np.dtype[np.generic]]
    """Of every tensor."""
    foreign: Sequence[tuple[int, Home, int]]
    """Tensors in arrays of the caller, with the position among inputs or outputs."""
    rebound: Mapping[int, None]
    """Instructions that touch such tensors, in their order."""

    @classmethod
    def of(cls, graph: NpuGraph, memory: MemoryPlan) -> Frame:
        """The frame of a graph with its scratch memory."""
        callers = (Home.INPUT, Home.OUTPUT)
        foreign = [(tensor, home, at) for tensor, (home, at) in enumerate(memory.homes) if home in callers]
        tensors = {tensor for tensor, _, _ in foreign}
        rebound = {
            position: None
            for position, instruction in enumerate(graph.instructions)
            if not tensors.isdisjoint((*instruction.inputs, *instruction.outputs))
        }
        dtypes = [np.dtype(tensor.type.dtype) for tensor in graph.tensors]
        return cls(graph, memory, dtypes, foreign, rebound)


class Binding:
    """The instructions of a graph and the memory that they compute in.

    Instructions that touch a model input or output are bound in each run, because those arrays are the caller's; all
    others are bound once per arena.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def dimensions(self, tensor: int) -> tuple[int, ...]:
        """Of a tensor."""
        return self.frame.graph.tensors[tensor].type.dimensions

    def outputs(self) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Dimensions and data types of the outputs."""
        frame = self.frame
        return [(self.dimensions(tensor), frame.dtypes[tensor]) for tensor in frame.graph.outputs]

    def parameters(self, position: int) -> Parameters:
        """Of an instruction."""
        return self.frame.graph.instructions[position].parameters

    def type(self, tensor: int) -> TensorType:
        """Of a tensor, at these sizes."""
        return TensorType(self.frame.graph.tensors[tensor].type.dtype, self.dimensions(tensor))

    def bound(self, arena: Array) -> Bound:
        """Everything that can be bound before a run."""
        arrays = [self._resident(tensor, arena) for tensor in range(len(self.frame.graph.tensors))]
        rebound = self.frame.rebound
        return arrays, [
            _unbound if position in rebound else self._bind(position, arrays)
            for position in range(len(self.frame.graph.instructions))
        ]

    def bound_again(
        self,
        arena: Array,
        before: Bound,
        tensors: Iterable[Sequence[int]],
        instructions: Iterable[Sequence[int]],
    ) -> Bound:
        """The same after these tensors and instructions, which are bound before a run, have changed.

        Args:
            arena: as before.
            before: what was bound.
            tensors: those in a row are one array.
            instructions: those in a row are one call.
        """
        arrays, runs = before[0].copy(), before[1].copy()
        for row in tensors:
            array = self._resident(row[0], arena)
            for tensor in row:
                arrays[tensor] = array
        for row in instructions:
            run = self._bind(row[0], arrays)
            for position in row:
                runs[position] = run
        return arrays, runs

    def runs(self, before: Bound, inputs: Sequence[Array], results: Sequence[Array]) -> list[Run]:
        """Every instruction bound, with these arrays of the caller's; nothing of them outlives what is returned."""
        arrays, runs = before[0].copy(), before[1].copy()
        for tensor, home, position in self.frame.foreign:
            given = inputs if home is Home.INPUT else results
            arrays[tensor] = given[position].reshape(self.dimensions(tensor))
        for position in self.frame.rebound:
            runs[position] = self._bind(position, arrays)
        return runs

    def _bind(self, position: int, arrays: Sequence[Any]) -> Run:
        return bind(self.frame.graph.instructions[position], arrays, self.parameters(position))

    def _resident(self, tensor: int, arena: Array) -> Array | None:
        """The array of a tensor that stays where it is, None for the caller's."""
        frame = self.frame
        home, offset = frame.memory.homes[tensor]
        if home is Home.ARENA:
            # One call, where a slice, a view and a form take three times as long.
            return np.ndarray(self.dimensions(tensor), frame.dtypes[tensor], arena, offset)
        return frame.graph.tensors[tensor].value


def bind(instruction: Instruction, arrays: Sequence[Any], parameters: Parameters) -> Run:
    """Bind one instruction to its arrays, with these parameters."""
    array_of = arrays.__getitem__
    inputs, outputs = tuple(map(array_of, instruction.inputs)), tuple(map(array_of, instruction.outputs))
    scratch, finish = tuple(map(array_of, instruction.scratch)) if instruction.scratch else (), None
    if instruction.activation is not None:
        own = len(scratch) - FUNCTIONS[instruction.activation.function].temporaries
        finish, scratch = bind_activation(instruction.activation, scratch[own:]), scratch[:own]
    return KERNELS[instruction.kernel].bind(KernelArguments(inputs, outputs, scratch, parameters, finish))


def _unbound() -> None:
    """Stands for an instruction that each run binds anew."""
