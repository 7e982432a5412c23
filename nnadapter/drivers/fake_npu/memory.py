"""Memory planning: views, in-place results, arena offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.kernels import KERNELS


class Home(StrEnum):
    """Kind of memory that holds a tensor."""

    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"


class MemoryPlan(NamedTuple):
    """Place of every tensor in memory."""

    homes: tuple[tuple[Home, int], ...]
    """Kind of memory of each tensor, with its position among inputs or outputs, or its byte offset in the arena."""
    arena_bytes: int
    arena_lower_bound_bytes: int
    """Maximum number of bytes in use at one time."""

    @property
    def arena_over_bound_percent(self) -> float:
        bound = self.arena_lower_bound_bytes
        return 100.0 * (self.arena_bytes - bound) / bound if bound else 0.0


def plan_memory(
    graph: NpuGraph, kinds: Mapping[int, int] = MappingProxyType({}), room: Mapping[int, int] = MappingProxyType({})
) -> MemoryPlan:
    """Assign memory to every tensor of a device graph by these rules.

    1. A view shares its owner's memory.
    2. Inputs and outputs use the caller's arrays.
    3. A result overwrites an input read for the last time, if the kernel works in place and types are equal.
    4. Any other tensor gets an arena offset from its first write to its last read.

    With dynamic shapes, tensors of one kind (`kinds`) always have equal types. `room` maps tensors to bytes to reserve.
    """
    return _Planner(graph, kinds, room).plan()


_FOREVER = 1 << 62


class _Planner:
    def __init__(self, graph: NpuGraph, kinds: Mapping[int, int], room: Mapping[int, int]) -> None:
        self._graph, self._kinds, self._room = graph, kinds, room
        self._owner = graph.owners()
        self._last_use: dict[int, int] = {}
        for step, instruction in enumerate(graph.instructions):
            self._last_use.update((self._owner[tensor], step) for tensor in instruction.inputs)
        self._last_use.update((self._owner[tensor], _FOREVER) for tensor in graph.outputs)
        self._root: dict[int, int] = {}
        self._life: dict[int, tuple[int, int]] = {}
        self._output = {self._owner[tensor]: position for position, tensor in enumerate(graph.outputs)}
        self._output_roots: dict[int, int] = {}

    def plan(self) -> MemoryPlan:
        from nnadapter.drivers.arenas import Buffer, place  # lazy: deserialized programs have a plan

        for step, instruction in enumerate(self._graph.instructions):
            for position, tensor in enumerate(instruction.outputs):
                self._assign(step, tensor, self._victim(step, instruction) if position == 0 else None)
        roots = [root for root in self._life if root not in self._output_roots]
        sizes = [self._room.get(root, 0) or self._graph.tensors[root].type.nbytes for root in roots]
        placement = place([Buffer(size, *self._life[root]) for root, size in zip(roots, sizes, strict=True)])
        offsets = dict(zip(roots, placement.offsets, strict=True))
        input_positions = {tensor: position for position, tensor in reversed(tuple(enumerate(self._graph.inputs)))}
        homes = tuple(self._home(owner, input_positions, offsets) for owner in self._owner)
        return MemoryPlan(homes, placement.arena_bytes, placement.lower_bound_bytes)

    def _assign(self, step: int, tensor: int, victim: int | None) -> None:
        root = tensor if victim is None else victim
        self._root[tensor] = root
        self._life[root] = (self._life[root][0] if victim is not None else step, self._last_use.get(tensor, step))
        if tensor in self._output:
            self._output_roots[root] = self._output[tensor]

    def _victim(self, step: int, instruction: Instruction) -> int | None:
        tensors, output, in_place = self._graph.tensors, instruction.outputs[0], KERNELS[instruction.kernel].in_place
        for tensor in (instruction.inputs[position] for position in in_place if position < len(instruction.inputs)):
            root = self._root.get(self._owner[tensor])
            if root is None or self._life[root][1] != step:
                continue
            same = tensors[tensor].type == tensors[output].type and self._kinds.get(tensor) == self._kinds.get(output)
            if same and self._reads_once(instruction, tensor, root, in_place):
                return root
        return None

    def _reads_once(self, instruction: Instruction, tensor: int, root: int, in_place: Sequence[int]) -> bool:
        return all(
            self._root.get(self._owner[other]) != root or (other == tensor and position in in_place)
            for position, other in enumerate(instruction.inputs)
        )

    def _home(self, owner: int, input_positions: dict[int, int], offsets: dict[int, int]) -> tuple[Home, int]:
        if self._graph.tensors[owner].value is not None:
            return Home.CONSTANT, 0
        root = self._root.get(owner)
        if root is None:
            return Home.INPUT, input_positions[owner]
        if root in self._output_roots:
            return Home.OUTPUT, self._output_roots[root]
        return Home.ARENA, offsets[root]
