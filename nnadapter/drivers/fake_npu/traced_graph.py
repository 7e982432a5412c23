"""A device graph whose sizes are traced numbers, filled with plain ones for one set of sizes after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor, Parameters, TensorType
from nnadapter.ir.symbolic_numbers import Interned, is_symbolic


@dataclass(frozen=True, slots=True)
class Changes:
    """What is other at some sizes than at others."""

    types: Collection[int]
    """Numbers of types, see `TracedGraph.kinds`."""
    tensors: Collection[int]
    """Of those types."""
    instructions: Collection[int]
    """Of other numbers, or of such tensors."""


class TracedGraph:
    """Knows which tensors and instructions hold traced numbers."""

    def __init__(self, graph: NpuGraph) -> None:
        self.graph = graph
        self._numbers = Interned()
        self.types: list[tuple[str, int]] = []
        """Traced types: data type, and position of the dimensions among the numbers."""
        self.kinds: dict[int, int] = {}
        """The tensors of traced types, and a number for each such type: equal where the types are, at all sizes."""
        known: dict[tuple[str, int], int] = {}
        for index, tensor in enumerate(graph.tensors):
            if is_symbolic(dimensions := tensor.type.dimensions):
                type_ = tensor.type.dtype, self._numbers.add(dimensions)
                self.kinds[index] = known.setdefault(type_, len(known))
        self.types.extend(known)
        self.dimensions: Mapping[int, int] = {tensor: self.types[kind][1] for tensor, kind in self.kinds.items()}
        """The tensors of traced types, and the positions of their dimensions among the numbers."""
        self.parameters: Mapping[int, Mapping[str, int]] = {
            index: {name: self._numbers.add(value) for name, value in instruction.parameters.items()}
            for index, instruction in enumerate(graph.instructions)
            if any(map(is_symbolic, instruction.parameters.values()))
        }
        """The instructions of traced parameters, and the positions of these among the numbers."""
        self._at = self._changes_by_position()

    @property
    def instructions(self) -> frozenset[int]:
        """The instructions that are others at other sizes."""
        return frozenset(index for changes in self._at.values() for index in changes.instructions)

    def numbers(self, known: Sequence[Any]) -> list[Any]:
        """What the graph is filled with, for the numbers of a replay."""
        return self._numbers.substitute_sizes(known)

    def changes(self, others: Sequence[bool]) -> Changes:
        """What is other where these of the numbers are."""
        parts = [self._at[position] for position, is_other in enumerate(others) if is_other and position in self._at]
        return Changes(
            [type_ for part in parts for type_ in part.types],
            [tensor for part in parts for tensor in part.tensors],
            dict.fromkeys(index for part in parts for index in part.instructions),
        )

    def filled(self, known: Sequence[Any]) -> NpuGraph:
        """The graph with the numbers of a replay."""
        return self.filled_with(self.numbers(known)) if self._at else self.graph

    def filled_with(self, numbers: Sequence[Any]) -> NpuGraph:
        """The graph with what `numbers` gave."""
        types = [self.type_with(type_, numbers) for type_ in range(len(self.types))]
        tensors, instructions = list(self.graph.tensors), list(self.graph.instructions)
        for index, kind in self.kinds.items():
            tensors[index] = NpuTensor(types[kind], tensors[index].value, tensors[index].view_of)
        for index in self.parameters:
            instructions[index] = instructions[index]._replace(parameters=self.parameters_with(index, numbers))
        return NpuGraph(tuple(tensors), tuple(instructions), self.graph.inputs, self.graph.outputs)

    def type_with(self, type_: int, numbers: Sequence[Any]) -> TensorType:
        """One of the traced types with what `numbers` gave."""
        dtype, dimensions = self.types[type_]
        return TensorType(dtype, numbers[dimensions])

    def parameters_with(self, instruction: int, numbers: Sequence[Any]) -> Parameters:
        """What an instruction must know, with what `numbers` gave."""
        positions = self.parameters.get(instruction)
        if positions is None:
            return self.graph.instructions[instruction].parameters
        return {name: numbers[position] for name, position in positions.items()}

    def _changes_by_position(self) -> dict[int, Changes]:
        """What hangs on each of the numbers."""
        touching: dict[int, list[int]] = {}
        for index, instruction in enumerate(self.graph.instructions):
            for tensor in {*instruction.inputs, *instruction.outputs} & self.kinds.keys():
                touching.setdefault(tensor, []).append(index)
        made: dict[int, tuple[set[int], list[int], set[int]]] = {}
        for tensor, type_ in self.kinds.items():
            types, tensors, instructions = made.setdefault(self.types[type_][1], (set(), [], set()))
            types.add(type_)
            tensors.append(tensor)
            instructions.update(touching.get(tensor, ()))
        for index, positions in self.parameters.items():
            for position in positions.values():
                made.setdefault(position, (set(), [], set()))[2].add(index)
        return {position: Changes(*parts) for position, parts in made.items()}
