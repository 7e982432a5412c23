"""A device graph whose sizes are traced numbers, filled with plain ones for one set of sizes after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor, TensorType
from nnadapter.ir.tracing import Interned, is_traced


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
            if is_traced(dimensions := tensor.type.dimensions):
                type_ = tensor.type.dtype, self._numbers.add(dimensions)
                self.kinds[index] = known.setdefault(type_, len(known))
        self.types.extend(known)
        self._parameters = {
            index: {name: self._numbers.add(value) for name, value in instruction.parameters.items()}
            for index, instruction in enumerate(graph.instructions)
            if any(map(is_traced, instruction.parameters.values()))
        }
        self._at = self._changes_by_position()

    @property
    def instructions(self) -> frozenset[int]:
        """The instructions that are others at other sizes."""
        return frozenset(index for changes in self._at.values() for index in changes.instructions)

    def numbers(self, known: Sequence[Any]) -> list[Any]:
        """What the graph is filled with, for the numbers of a replay."""
        return self._numbers.settled(known)

    def changes(self, numbers: Sequence[Any], before: Sequence[Any]) -> Changes:
        """What is other with some numbers than with those before."""
        at = self._at
        parts = [
            at[position]
            for position, (now, then) in enumerate(zip(numbers, before, strict=True))
            if now != then and position in at
        ]
        return Changes(
            [type_ for part in parts for type_ in part.types],
            [tensor for part in parts for tensor in part.tensors],
            {index for part in parts for index in part.instructions},
        )

    def filled(self, known: Sequence[Any]) -> NpuGraph:
        """The graph with the numbers of a replay."""
        return self.filled_with(self.numbers(known)) if self._at else self.graph

    def filled_with(self, numbers: Sequence[Any]) -> NpuGraph:
        """The graph with what `numbers` gave."""
        changes = Changes(range(len(self.types)), self.kinds.keys(), self._parameters.keys())
        return self.changed(self.graph, numbers, changes)

    def changed(self, graph: NpuGraph, numbers: Sequence[Any], changes: Changes) -> NpuGraph:
        """The graph, or one that was filled from it and more than it, with other numbers where they have changed."""
        kinds, own = self.kinds, self.graph.tensors
        types = {type_: self.type_with(type_, numbers) for type_ in changes.types}
        tensors, instructions = list(graph.tensors), list(graph.instructions)
        for index in changes.tensors:
            tensors[index] = NpuTensor(types[kinds[index]], own[index].value, own[index].view_of)
        for index in changes.instructions:
            positions = self._parameters.get(index)
            if positions is not None:
                filled = {name: numbers[position] for name, position in positions.items()}
                instructions[index] = replace(instructions[index], parameters=filled)
        return NpuGraph(tuple(tensors), tuple(instructions), graph.inputs, graph.outputs)

    def type_with(self, type_: int, numbers: Sequence[Any]) -> TensorType:
        """One of the traced types with what `numbers` gave."""
        dtype, dimensions = self.types[type_]
        return TensorType(dtype, numbers[dimensions])

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
        for index, positions in self._parameters.items():
            for position in positions.values():
                made.setdefault(position, (set(), [], set()))[2].add(index)
        return {position: Changes(*parts) for position, parts in made.items()}
