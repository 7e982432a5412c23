"""A graph of open sizes, bound at one set of sizes after the other, in memory that has room for larger ones."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from nnadapter.drivers.fake_npu.binding import Binding, Bound, Frame
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, Parameters, TensorType
from nnadapter.drivers.fake_npu.memory import plan_memory
from nnadapter.drivers.fake_npu.scratch import may_want_scratch, wanted_scratch, with_scratch
from nnadapter.drivers.fake_npu.traced_graph import Changes, TracedGraph
from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array

_Scratch = dict[int, tuple[int, ...]]
"""Dimensions of scratch tensors."""
_MOST_REBINDINGS = 64
"""Sets of numbers that change together, of which there are few as a rule."""


@dataclass(frozen=True, slots=True)
class _Rebinding:
    """What is bound again before a run where certain numbers are others."""

    types: Sequence[tuple[int, int]]
    """Positions of dimensions, and how many elements there is room for."""
    scratch: Sequence[Sequence[int]]
    """Instructions that want scratch memory; those in a row want the same."""
    tensors: Sequence[int]
    """Scratch included."""
    instructions: Sequence[int]


@dataclass(eq=False)
class Layout:
    """Where tensors lie, with room for larger ones, and what is bound again when sizes change."""

    traced: TracedGraph
    frame: Frame
    room: Sequence[int]
    """Bytes that tensors may need, by the numbers of their types (`TracedGraph.kinds`)."""
    scratch_room: Mapping[int, int]
    """Bytes that scratch memory of other sizes at other times may need."""
    _rebindings: dict[tuple[bool, ...], _Rebinding] = field(default_factory=dict)

    @classmethod
    def at(cls, traced: TracedGraph, numbers: Sequence[Any], available_bytes: int) -> Layout:
        """A layout with room for twice these sizes, or for them alone where there is no more memory.

        Raises:
            OutOfMemoryError: there is less.
        """
        graph = with_scratch(traced.filled_with(numbers))
        scratch = [tensor for position in traced.instructions for tensor in graph.instructions[position].scratch]
        needed = [traced.type_with(type_, numbers).nbytes for type_ in range(len(traced.types))]
        scratch_needed = {tensor: graph.tensors[tensor].type.nbytes for tensor in scratch}
        room = list(map(_doubled, needed))
        scratch_room = {tensor: _doubled(nbytes) for tensor, nbytes in scratch_needed.items()}
        rooms = {tensor: room[type_] for tensor, type_ in traced.kinds.items()} | scratch_room
        memory = plan_memory(graph, traced.kinds, rooms)
        if memory.arena_bytes > available_bytes:
            room, scratch_room, memory = needed, scratch_needed, plan_memory(graph, traced.kinds)
        if memory.arena_bytes > available_bytes:
            raise OutOfMemoryError(
                f"at these sizes the segment needs {memory.arena_bytes} bytes for the arena, available: "
                f"{available_bytes}; the option memory_bytes sets it"
            )
        return cls(traced, Frame.of(graph, memory), room, scratch_room)

    def rebinding(self, numbers: Sequence[Any], before: Sequence[Any]) -> _Rebinding:
        """What is bound again where numbers are others than before; a size that grows changes the same each time."""
        others = tuple(map(operator.ne, numbers, before))
        known = self._rebindings.get(others)
        if known is None:
            if len(self._rebindings) >= _MOST_REBINDINGS:
                self._rebindings = {}
            known = self._rebindings[others] = self._worked_out(self.traced.changes(others))
        return known

    def has_scratch_room(self, instructions: Sequence[int], wanted: Sequence[TensorType]) -> bool:
        """Whether there is room for scratch memory of these types, for each of some instructions."""
        own = [self.frame.graph.instructions[position].scratch for position in instructions]
        return all(
            len(tensors) == len(wanted)
            and all(type_.nbytes <= self.scratch_room[each] for each, type_ in zip(tensors, wanted, strict=True))
            for tensors in own
        )

    def _worked_out(self, changes: Changes) -> _Rebinding:
        graph, traced, rebound = self.frame.graph, self.traced, self.frame.rebound
        foreign = {tensor for tensor, _, _ in self.frame.foreign}
        alike: dict[Hashable, list[int]] = {}
        for position in changes.instructions:
            if may_want_scratch(graph.instructions[position]):
                alike.setdefault(self._outline(graph.instructions[position], position), []).append(position)
        scratch = [tensor for group in alike.values() for each in group for tensor in graph.instructions[each].scratch]
        types = [traced.types[type_] for type_ in changes.types]
        return _Rebinding(
            [
                (dimensions, self.room[number] // TensorType(dtype, ()).nbytes)
                for number, (dtype, dimensions) in zip(changes.types, types, strict=True)
            ],
            list(alike.values()),
            [*(tensor for tensor in changes.tensors if tensor not in foreign), *scratch],
            [position for position in changes.instructions if position not in rebound],
        )

    def _outline(self, instruction: Instruction, position: int) -> Hashable:
        """What decides which scratch memory an instruction wants, the same for instructions that want the same."""
        types = [
            self.traced.kinds.get(tensor, -1) if tensor in self.traced.kinds else self.frame.graph.tensors[tensor].type
            for tensor in (*instruction.inputs, *instruction.outputs)
        ]
        positions = self.traced.parameters.get(position)
        parameters = instruction.parameters.items() if positions is None else positions.items()
        return instruction.kernel, instruction.activation, *types, repr(list(parameters))


class SizedBinding(Binding):
    """The binding of a layout at one set of sizes.

    Args:
        layout: which has room for them.
        numbers: what its graph is filled with.
        scratch: dimensions of scratch memory where they are not those of the layout's graph.
    """

    def __init__(self, layout: Layout, numbers: Sequence[Any], scratch: _Scratch) -> None:
        super().__init__(layout.frame)
        self.layout, self._numbers, self._scratch = layout, numbers, scratch
        self._positions = layout.traced.dimensions

    def dimensions(self, tensor: int) -> tuple[int, ...]:
        """See `Binding.dimensions`."""
        position = self._positions.get(tensor)
        if position is not None:
            return self._numbers[position]  # type: ignore[no-any-return]
        own = self._scratch.get(tensor)
        return self.frame.graph.tensors[tensor].type.dimensions if own is None else own

    def parameters(self, position: int) -> Parameters:
        """See `Binding.parameters`."""
        return self.layout.traced.parameters_with(position, self._numbers)

    @cached_property
    def graph(self) -> NpuGraph:
        """The graph at these sizes, but for its scratch memory."""
        return self.layout.traced.filled_with(self._numbers)

    def resized(self, numbers: Sequence[Any]) -> SizedBinding | None:
        """The binding at other sizes; None where the layout has no room for them."""
        layout = self.layout
        rebinding = layout.rebinding(numbers, self._numbers)
        if any(prod(numbers[position]) > room for position, room in rebinding.types):
            return None
        scratch = {**self._scratch} if rebinding.scratch else self._scratch
        sized = SizedBinding(layout, numbers, scratch)
        for group in rebinding.scratch:
            wanted = sized._wanted(group[0])
            if not layout.has_scratch_room(group, wanted):
                return None
            for position in group:
                tensors = self.frame.graph.instructions[position].scratch
                scratch.update(zip(tensors, [type_.dimensions for type_ in wanted], strict=True))
        return sized

    def bound_after(self, arena: Array, before: SizedBinding, bound: Bound) -> Bound:
        """What can be bound before a run, where that was `bound` at other sizes in the same layout and memory."""
        rebinding = self.layout.rebinding(self._numbers, before._numbers)
        return self.bound_again(arena, bound, rebinding.tensors, rebinding.instructions)

    def _wanted(self, position: int) -> tuple[TensorType, ...]:
        instruction = self.frame.graph.instructions[position]
        inputs, outputs = (list(map(self._type, group)) for group in (instruction.inputs, instruction.outputs))
        return wanted_scratch(instruction, inputs, outputs, self.parameters(position))

    def _type(self, tensor: int) -> TensorType:
        return TensorType(self.frame.graph.tensors[tensor].type.dtype, self.dimensions(tensor))


def _doubled(nbytes: int) -> int:
    """Room to grow: the next power of two."""
    return 1 << nbytes.bit_length()
