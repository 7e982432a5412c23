"""A device graph whose sizes are traced numbers, filled with plain ones for one set of sizes after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, NpuTensor, TensorType
from nnadapter.ir.tracing import Interned, is_traced


@dataclass(frozen=True, slots=True)
class Changes:
    """What is other at some sizes than at others."""

    tensors: Collection[int]
    instructions: Collection[int]
    """Of other numbers, or of such tensors."""


class TracedGraph:
    """Knows which tensors and instructions hold traced numbers."""

    def __init__(self, graph: NpuGraph) -> None:
        self.graph = graph
        self._numbers = Interned()
        self._types: dict[tuple[str, int], int] = {}
        self._tensors: dict[int, list[tuple[int, int]]] = {}
        """Tensors, each with the number of its type, by position of their dimensions."""
        for index, tensor in enumerate(graph.tensors):
            if is_traced(dimensions := tensor.type.dimensions):
                position = self._numbers.add(dimensions)
                type_ = self._types.setdefault((tensor.type.dtype, position), len(self._types))
                self._tensors.setdefault(position, []).append((index, type_))
        self.kinds = {tensor: type_ for typed in self._tensors.values() for tensor, type_ in typed}
        """The tensors of traced types, and a number for each such type: equal where the types are, at all sizes."""
        self._parameters: dict[int, list[int]] = {}
        """Instructions by position of their parameters."""
        self._instructions: dict[int, dict[str, int]] = {}
        for index, instruction in enumerate(graph.instructions):
            if any(map(is_traced, instruction.parameters.values())):
                positions = {name: self._numbers.add(value) for name, value in instruction.parameters.items()}
                self._instructions[index] = positions
                for position in positions.values():
                    self._parameters.setdefault(position, []).append(index)
        self._touching: dict[int, list[int]] = {}
        """Instructions by the tensors that they read or make."""
        for index, instruction in enumerate(graph.instructions):
            for touched in {*instruction.inputs, *instruction.outputs}:
                self._touching.setdefault(touched, []).append(index)

    def numbers(self, known: Sequence[Any]) -> list[Any]:
        """What the graph is filled with, for the numbers of a replay."""
        return self._numbers.settled(known)

    def changes(self, numbers: Sequence[Any], before: Sequence[Any]) -> Changes:
        """What is other with some numbers than with those before."""
        positions = [at for at, (now, then) in enumerate(zip(numbers, before, strict=True)) if now != then]
        tensors = [tensor for position in positions for tensor, _ in self._tensors.get(position, ())]
        instructions = {index for position in positions for index in self._parameters.get(position, ())}
        for tensor in tensors:
            instructions.update(self._touching.get(tensor, ()))
        return Changes(tensors, instructions)

    @property
    def instructions(self) -> frozenset[int]:
        """The instructions that are others at other sizes."""
        touching = {index for tensor in self.kinds for index in self._touching.get(tensor, ())}
        return frozenset(touching | self._instructions.keys())

    def filled(self, known: Sequence[Any]) -> NpuGraph:
        """The graph with the numbers of a replay."""
        return self.filled_with(self.numbers(known)) if self._tensors or self._instructions else self.graph

    def filled_with(self, numbers: Sequence[Any]) -> NpuGraph:
        """The graph with what `numbers` gave."""
        return self.changed(self.graph, numbers, Changes(self.kinds.keys(), self._instructions.keys()))

    def changed(self, graph: NpuGraph, numbers: Sequence[Any], changes: Changes) -> NpuGraph:
        """The graph, or one that was filled from it and more than it, with other numbers where they have changed."""
        kinds, own = self.kinds, self.graph
        types = [TensorType(dtype, numbers[dimensions]) for dtype, dimensions in self._types]
        tensors, instructions = list(graph.tensors), list(graph.instructions)
        for index in changes.tensors:
            tensors[index] = NpuTensor(types[kinds[index]], own.tensors[index].value, own.tensors[index].view_of)
        for index in changes.instructions:
            if index in self._instructions:
                instructions[index] = self._with_numbers(index, instructions[index], numbers)
        return NpuGraph(tuple(tensors), tuple(instructions), graph.inputs, graph.outputs)

    def _with_numbers(self, index: int, instruction: Instruction, numbers: Sequence[Any]) -> Instruction:
        filled = {name: numbers[position] for name, position in self._instructions[index].items()}
        return replace(instruction, parameters=filled)
