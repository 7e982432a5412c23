"""A graph of open sizes, bound at one set of sizes after the other, in memory that has room for larger ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from nnadapter.drivers.fake_npu.binding import Binding, Bound, Frame
from nnadapter.drivers.fake_npu.graph import NpuGraph, Parameters, TensorType
from nnadapter.drivers.fake_npu.memory import Home, may_want_scratch, plan_memory, wanted_scratch, with_scratch
from nnadapter.drivers.fake_npu.traced_graph import Changes, TracedGraph
from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array

_Scratch = dict[int, tuple[int, ...]]
"""Dimensions of scratch tensors."""
_MOST_REBINDINGS = 64
"""Sets of numbers that change together, of which there are few as a rule."""
_MOST_LOOKED_AT_BYTES = 64
"""Constants that are held against each other: the scales and limits that every layer has."""


@dataclass(frozen=True, slots=True)
class _Rebinding:
    """What is bound again before a run where certain numbers are others.

    Layers of a network follow each other in the same memory, and much of what one does the next does again. Tensors
    that are one array then, and instructions that do the same with the same arrays, stand in a row, and are bound once.
    """

    types: Sequence[tuple[int, int]]
    """Positions of dimensions, and how many elements there is room for."""
    scratch: Sequence[Sequence[int]]
    """Instructions that want scratch memory; those in a row want the same."""
    tensors: Sequence[Sequence[int]]
    """Scratch included; those in a row are one array."""
    instructions: Sequence[Sequence[int]]
    """Those in a row are one call."""


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

    def has_scratch_room(self, position: int, wanted: Sequence[TensorType]) -> bool:
        """Whether an instruction, and with it all that want the same, has room for scratch memory of these types."""
        tensors = self.frame.graph.instructions[position].scratch
        return len(tensors) == len(wanted) and all(
            type_.nbytes <= self.scratch_room[tensor] for tensor, type_ in zip(tensors, wanted, strict=True)
        )

    def _worked_out(self, changes: Changes) -> _Rebinding:
        graph, traced, rebound = self.frame.graph, self.traced, self.frame.rebound
        foreign = {tensor for tensor, _, _ in self.frame.foreign}
        wanting = [position for position in changes.instructions if may_want_scratch(graph.instructions[position])]
        scratch = _alike(wanting, self._outline)
        types = [traced.types[type_] for type_ in changes.types]
        return _Rebinding(
            [
                (dimensions, self.room[number] // TensorType(dtype, ()).nbytes)
                for number, (dtype, dimensions) in zip(changes.types, types, strict=True)
            ],
            scratch,
            [
                *_alike((tensor for tensor in changes.tensors if tensor not in foreign), self._array),
                *(row for group in scratch for row in self._scratch_arrays(group)),
            ],
            _alike((position for position in changes.instructions if position not in rebound), self._call),
        )

    def _scratch_arrays(self, instructions: Sequence[int]) -> Iterable[Sequence[int]]:
        """The scratch tensors of instructions that want the same, in rows of those that are one array."""
        for tensors in zip(
            *(self.frame.graph.instructions[position].scratch for position in instructions), strict=True
        ):
            yield from _alike(tensors, self.frame.memory.homes.__getitem__)

    def _outline(self, position: int) -> Hashable:
        """What decides which scratch memory an instruction wants, the same for instructions that want the same."""
        instruction = self.frame.graph.instructions[position]
        positions = self.traced.parameters.get(position)
        parameters = instruction.parameters.items() if positions is None else positions.items()
        types = map(self._form, (*instruction.inputs, *instruction.outputs))
        return instruction.kernel, instruction.activation, *types, repr(list(parameters))

    def _call(self, position: int) -> Hashable:
        """The same for instructions that do the same in the same memory, whatever the numbers are."""
        instruction = self.frame.graph.instructions[position]
        scratch = map(self.frame.memory.homes.__getitem__, instruction.scratch)
        arrays = map(self._array, (*instruction.inputs, *instruction.outputs))
        return self._outline(position), *arrays, *scratch

    def _array(self, tensor: int) -> Hashable:
        """The same for tensors that are one array, or constants that are equal."""
        home, place = self.frame.memory.homes[tensor]
        if home is not Home.CONSTANT:
            return home, place, self._form(tensor)
        value = self.frame.graph.tensors[tensor].value
        if value is None or value.nbytes > _MOST_LOOKED_AT_BYTES:
            return home, tensor
        return home, self._form(tensor), value.tobytes()

    def _form(self, tensor: int) -> Hashable:
        """The same for tensors of one data type that have the same dimensions, whatever the numbers are."""
        kind = self.traced.kinds.get(tensor)
        return self.frame.graph.tensors[tensor].type if kind is None else kind


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
        self._rebinding: tuple[Sequence[Any], _Rebinding] | None = None
        """What is bound again, and after which numbers."""
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
        for position, room in rebinding.types:
            if prod(numbers[position]) > room:
                return None
        scratch = {**self._scratch} if rebinding.scratch else self._scratch
        sized = SizedBinding(layout, numbers, scratch)
        sized._rebinding = self._numbers, rebinding
        for group in rebinding.scratch:
            wanted = sized._wanted(group[0])
            if not layout.has_scratch_room(group[0], wanted):
                return None
            for position in group:
                tensors = self.frame.graph.instructions[position].scratch
                scratch.update(zip(tensors, [type_.dimensions for type_ in wanted], strict=True))
        return sized

    def bound_after(self, arena: Array, before: SizedBinding, bound: Bound) -> Bound:
        """What can be bound before a run, where that was `bound` at other sizes in the same layout and memory."""
        known, rebinding = self._rebinding or (None, None)
        if rebinding is None or known is not before._numbers:  # bound in an arena that others had meanwhile
            rebinding = self.layout.rebinding(self._numbers, before._numbers)
        return self.bound_again(arena, bound, rebinding.tensors, rebinding.instructions)

    def _wanted(self, position: int) -> tuple[TensorType, ...]:
        instruction = self.frame.graph.instructions[position]
        inputs, outputs = (list(map(self.type, group)) for group in (instruction.inputs, instruction.outputs))
        return wanted_scratch(instruction, inputs, outputs, self.parameters(position))


def _alike(members: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """The members in rows of those with the same key."""
    rows: dict[Hashable, list[int]] = {}
    for member in members:
        rows.setdefault(key(member), []).append(member)
    return list(rows.values())


def _doubled(nbytes: int) -> int:
    """Room to grow: the next power of two."""
    return 1 << nbytes.bit_length()
