"""Reuse of a lowered model for models that differ from it only in sizes or constants.

A `LoweringTemplate` is a lowered model with symbolic numbers. It records how its constants are computed (`ir.derived`).
It serves another model if all guards hold and that model's numbers fit the `Groups`. Otherwise a new template is
created.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.limits import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.lowering import Lowered, lower
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.program import SymbolicGraph
from nnadapter.ir import Array, Model, verify
from nnadapter.ir.derived import ArrayTrace, TracedArray
from nnadapter.ir.structure import constants, numbers, with_constants, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.process.resources import Cache, new_lock
from nnadapter.records import dataclass, replace

_CONSTANTS = 64
_STRUCTURES = 64
_TEMPLATES = 8
_SIZES = 4
_MOST_FAILURES = 4
"""Number of failures after which models of a structure are no longer traced."""
_MOST_TEMPLATES = 64
_References = tuple[weakref.ref[Array], ...]


class BoundConstants:
    """Thread-safe cache of computed arrays, found by weak references to their source constants."""

    def __init__(self) -> None:
        self._arrays: Cache[tuple[int, ...], tuple[_References, _References]] = Cache("fake_npu: constants", _CONSTANTS)

    def keep(self, sources: Sequence[Array], arrays: Sequence[Array]) -> None:
        key = tuple(map(id, sources))
        self._arrays.drop(key)  # an equal key belongs to dead sources
        self._arrays.put(key, (tuple(map(weakref.ref, sources)), tuple(map(weakref.ref, arrays))))

    def look_up(self, sources: Sequence[Array]) -> Sequence[Array] | None:
        entry = self._arrays.get(tuple(map(id, sources)))
        if entry is None or any(reference() is not array for reference, array in zip(entry[0], sources, strict=True)):
            return None
        arrays = [array for reference in entry[1] if (array := reference()) is not None]
        return arrays if len(arrays) == len(entry[1]) else None


@dataclass(frozen=True, slots=True)
class Groups:
    """Positions of dimensions and attribute numbers in models of one structure.

    At `fixed` positions, all models so far had the same number. Within a group, a model's numbers are equal.
    """

    labels: tuple[Hashable, ...]
    fixed: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, values: Sequence[Any], varying: Sequence[Sequence[int]]) -> Groups:
        labels = list(_comparable(values))
        for number, places in enumerate(varying):
            for place in places:
                labels[place] = ("group", number)
        changing = {place for places in varying for place in places}
        fixed = tuple(place for place in range(len(values)) if place not in changing)
        return cls(tuple(labels), fixed, tuple(map(tuple, varying)))

    def refined(self, values: Sequence[Any]) -> Groups:
        comparable = _comparable(values)
        fixed = {place for place in self.fixed if comparable[place] == self.labels[place]}
        groups: dict[Hashable, list[int]] = {}
        for place in range(len(values)):
            if place not in fixed:
                groups.setdefault((self.labels[place], comparable[place]), []).append(place)
        return Groups.of(values, list(groups.values()))

    def variables(self, values: Sequence[Any]) -> list[Any] | None:
        comparable = _comparable(values)
        if any(comparable[place] != self.labels[place] for place in self.fixed):
            return None
        if any(comparable[place] != comparable[places[0]] for places in self.groups for place in places):
            return None
        return [values[places[0]] for places in self.groups]


def _comparable(values: Sequence[Any]) -> Sequence[Hashable]:
    """Return numbers as keys. Floats become text, so that NaN equals NaN and 0.0 differs from -0.0."""
    return [repr(value) if type(value) is float else value for value in values]


class LoweringTemplate:
    """Lowered model with symbolic sizes and traced constants."""

    def __init__(self, model: Model, groups: Groups, values: Sequence[Any], arithmetic: Arithmetic = USUAL) -> None:
        self._groups, self._trace = groups, SymbolicTrace()
        symbolic = list(values)
        for places in groups.groups:
            variable = self._trace.variable(values[places[0]])
            for place in places:
                symbolic[place] = variable
        self._arrays = ArrayTrace(constants(model))
        sized = with_numbers(model, symbolic) if groups.groups else model
        self._lowered = lower(with_constants(sized, self._arrays.variables()), arithmetic)
        contents, graph = self._arrays.finish(), self._lowered.graph
        self._graph = SymbolicGraph(graph) if groups.groups else None
        tensor_values: list[tuple[int, object]] = [(index, tensor.value) for index, tensor in enumerate(graph.tensors)]
        self._constants = [(index, value.number) for index, value in tensor_values if isinstance(value, TracedArray)]
        self._bound = BoundConstants()
        self._fresh: Sequence[Array] | None = [contents[number] for _, number in self._constants]
        """Strong references until the first instantiation, because `_bound` has only weak ones."""
        self._bound.keep(constants(model), self._fresh)
        self._sized: Cache[Hashable, tuple[NpuGraph, MemoryPlan]] = Cache("fake_npu: sizes", _SIZES)

    def filled(self, model: Model, values: Sequence[Any]) -> Lowered | None:
        sized = self._specialize(values)
        arrays = None if sized is None else self._contents(constants(model))
        self._fresh = None
        if sized is None or arrays is None:
            return None
        graph, memory = sized
        if self._constants:
            graph = graph.with_values({index: array for (index, _), array in zip(self._constants, arrays, strict=True)})
        return replace(self._lowered, graph=graph, memory=memory)

    def _contents(self, sources: Sequence[Array]) -> Sequence[Array] | None:
        arrays = self._bound.look_up(sources)
        if arrays is None and (values := self._arrays.replay(sources)) is not None:
            arrays = [values[number] for _, number in self._constants]
            self._bound.keep(sources, arrays)
        return arrays

    def _specialize(self, values: Sequence[Any]) -> tuple[NpuGraph, MemoryPlan] | None:
        variables = self._groups.variables(values)
        if variables is None:
            return None
        key = tuple(_comparable(variables))
        sized = self._sized.get(key)
        if sized is None:
            graph, memory = self._lowered.graph, self._lowered.memory
            if self._graph is not None:
                replay_values = self._trace.replay(variables)
                if replay_values is None:
                    return None
                graph = self._graph.specialize(replay_values)
            sized = self._sized.put(key, (graph, memory or plan_memory(graph)))
        return sized


@dataclass(slots=True)
class _Structure:
    groups: Groups
    templates: tuple[LoweringTemplate, ...] = ()
    count: int = 0
    failures: int = 0


class Lowerings:
    """Cache that lowers models and reuses earlier results for equal structures. Thread-safe."""

    def __init__(self, arithmetic: Arithmetic = USUAL) -> None:
        self._arithmetic = arithmetic
        self._structures: Cache[Hashable, _Structure] = Cache("fake_npu: structures", _STRUCTURES)
        self._lock = new_lock()

    @property
    def templates(self) -> int:
        return sum(len(structure.templates) for structure in self._structures.values())

    def prepare(self, model: Model) -> Lowered:
        values = numbers(model)
        verify(model)  # passes assume a valid model
        structure = self._structures.get_or_make(
            model.structure, lambda: _Structure(Groups.of(values, model.covarying_number_groups))
        )
        for template in structure.templates:
            filled = template.filled(model, values)
            if filled is not None:
                self._keep(structure, template)
                return filled
        return self._traced(model, structure, values) or lower(model, self._arithmetic)

    def clear(self) -> None:
        self._structures.clear()

    def _traced(self, model: Model, structure: _Structure, values: Sequence[Any]) -> Lowered | None:
        if structure.failures >= _MOST_FAILURES or structure.count >= _MOST_TEMPLATES:
            return None
        groups = structure.groups
        groups = groups if groups.variables(values) is not None else groups.refined(values)
        try:
            template = LoweringTemplate(model, groups, values, self._arithmetic)
            filled = template.filled(model, values)
        except Exception:  # noqa: BLE001  an optimization must not fail
            structure.failures += 1
            self._structures.counts.failures += 1
            return None
        with self._lock:
            structure.groups = groups
            structure.count += 1
        self._keep(structure, template)
        return filled

    def _keep(self, structure: _Structure, template: LoweringTemplate) -> None:
        with self._lock:
            if structure.templates[:1] != (template,):
                others = (other for other in structure.templates if other is not template)
                structure.templates = (template, *others)[:_TEMPLATES]
