"""Reuse of lowered models for others of the same structure, which differ in sizes or in contents of constants.

1. A model is lowered with traced constants (`ir.derived`), and with symbolic numbers where it says that they vary: a
   `LoweringTemplate`.
2. Every further model is the template with its own constants and numbers, if the numbers are equal where they were
   equal before, and every decision of the lowering holds. Otherwise it is traced again, in one more template.
3. Memory is planned once per template and set of numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.limits import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.lowering import LoweredModel, lower, prepared
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.program import SymbolicGraph, weight_bytes
from nnadapter.ir import Array, Model, verify
from nnadapter.ir.derived import ArrayTrace, TracedArray
from nnadapter.ir.structure import constants, numbers, with_constants, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.process.resources import Cache, new_lock

_CONSTANTS = 64
"""Sets of constants per template; the least recently used goes, as in all caches here."""
_STRUCTURES = 64
_TEMPLATES = 8
"""Templates per structure."""
_SIZES = 4
"""Placed sets of numbers per template."""
_MOST_FAILURES = 4
"""Tracing stops for a structure after so many failures,"""
_MOST_TEMPLATES = 64
"""or after so many templates, which are of no use to other models."""
_References = tuple[weakref.ref[Array], ...]


class BoundConstants:
    """Arrays by the identity of their source arrays; safe to use from many threads. It keeps no array alive."""

    def __init__(self) -> None:
        self._arrays: Cache[tuple[int, ...], tuple[_References, _References]] = Cache("fake_npu: constants", _CONSTANTS)

    def keep(self, sources: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Note arrays that were computed from `sources`."""
        key = tuple(map(id, sources))
        self._arrays.drop(key)  # its sources are gone
        self._arrays.put(key, (tuple(map(weakref.ref, sources)), tuple(map(weakref.ref, arrays))))

    def look_up(self, sources: Sequence[Array]) -> Sequence[Array] | None:
        """Return the arrays of `sources`; None if they are unknown or gone."""
        known = self._arrays.get(tuple(map(id, sources)))
        if known is None or any(reference() is not array for reference, array in zip(known[0], sources, strict=True)):
            return None
        arrays = [array for reference in known[1] if (array := reference()) is not None]
        return arrays if len(arrays) == len(known[1]) else None


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers that are the same in every model seen, and groups that are equal to each other in every model seen."""

    labels: tuple[Hashable, ...]
    """Per place: the number that always stands there, or the name of its group."""
    fixed: tuple[int, ...]
    """Places whose number never changed."""
    groups: tuple[tuple[int, ...], ...]
    """The other places, those of equal numbers together."""

    @classmethod
    def of(cls, values: Sequence[Any], varying: Sequence[Sequence[int]]) -> Groups:
        """Return the groups of one model, as `Model.covarying_number_groups` declares them."""
        labels = list(_comparable(values))
        for number, places in enumerate(varying):
            for place in places:
                labels[place] = ("group", number)
        changing = {place for places in varying for place in places}
        fixed = tuple(place for place in range(len(values)) if place not in changing)
        return cls(tuple(labels), fixed, tuple(map(tuple, varying)))

    def refined(self, values: Sequence[Any]) -> Groups:
        """Return the groups after one more model."""
        comparable = _comparable(values)
        fixed = {place for place in self.fixed if comparable[place] == self.labels[place]}
        groups: dict[Hashable, list[int]] = {}
        for place in range(len(values)):
            if place not in fixed:
                groups.setdefault((self.labels[place], comparable[place]), []).append(place)
        labels = list(self.labels)
        for number, places in enumerate(groups.values()):
            for place in places:
                labels[place] = ("group", number)
        return Groups(tuple(labels), tuple(sorted(fixed)), tuple(map(tuple, groups.values())))

    def variables(self, values: Sequence[Any]) -> list[Any] | None:
        """Return one number per group; None if the numbers do not fall into these groups."""
        comparable = _comparable(values)
        if any(comparable[place] != self.labels[place] for place in self.fixed):
            return None
        if any(comparable[place] != comparable[places[0]] for places in self.groups for place in places):
            return None
        return [values[places[0]] for places in self.groups]


def _comparable(values: Sequence[Any]) -> Sequence[Hashable]:
    """Return the numbers, floats as texts: NaN equals NaN here, and 0.0 is not -0.0."""
    return [repr(value) if type(value) is float else value for value in values]


class _ModelFacts(NamedTuple):
    """Facts that are the same for all sizes of one model."""

    structure: object
    """The model's own: `ir.structure` hands it on to other sizes."""
    weight_bytes: int
    runs_as: tuple[str, ...]


class LoweringTemplate:
    """A lowered model whose sizes are symbolic, and whose constants are traced arrays."""

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
        """None if there are no symbolic numbers."""
        held: list[tuple[int, object]] = [(index, tensor.value) for index, tensor in enumerate(graph.tensors)]
        self._constants = [(index, value.number) for index, value in held if isinstance(value, TracedArray)]
        """Constants, and their positions among traced arrays."""
        self._facts: _ModelFacts | None = None
        self._bound = BoundConstants()
        self._fresh: Sequence[Array] | None = [contents[number] for _, number in self._constants]
        """Kept alive until the template is specialized for its own model."""
        self._bound.keep(constants(model), self._fresh)
        self._sized: Cache[Hashable, tuple[NpuGraph, MemoryPlan]] = Cache("fake_npu: sizes", _SIZES)

    def filled(self, model: Model, values: Sequence[Any]) -> LoweredModel | None:
        """Return the template with the constants and numbers of a model; None if a decision does not hold for it.

        Safe to use from many threads.
        """
        sized = self._specialize(values)
        arrays = None if sized is None else self._contents(constants(model))
        self._fresh = None
        if sized is None or arrays is None:
            return None
        graph, memory = sized
        if self._constants:
            graph = graph.with_values({index: each for (index, _), each in zip(self._constants, arrays, strict=True)})
        facts = self._facts
        if facts is None or facts.structure is not model.structure:
            texts = self._lowered.roles.runs_as(model)
            self._facts = facts = _ModelFacts(model.structure, weight_bytes(graph), texts)
        return LoweredModel(graph, memory, facts.weight_bytes, facts.runs_as)

    def _contents(self, sources: Sequence[Array]) -> Sequence[Array] | None:
        """Return the template's constants for a model's; None if those would have decided otherwise."""
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
            graph = self._lowered.graph
            if self._graph is not None:
                replay_values = self._trace.replay(variables)
                if replay_values is None:
                    return None
                graph = self._graph.specialize(replay_values)
            sized = self._sized.put(key, (graph, plan_memory(graph)))
        return sized


@dataclass(slots=True)
class _Structure:
    """The templates of one structure."""

    groups: Groups
    templates: tuple[LoweringTemplate, ...] = ()
    """The most recently used first."""
    count: int = 0
    failures: int = 0


class Lowerings:
    """Prepares models, each structure as seldom as possible; safe to use from many threads."""

    def __init__(self, arithmetic: Arithmetic = USUAL) -> None:
        self._arithmetic = arithmetic
        self._structures: Cache[Hashable, _Structure] = Cache("fake_npu: structures", _STRUCTURES)
        self._lock = new_lock()

    @property
    def templates(self) -> int:
        """Number of templates."""
        return sum(len(structure.templates) for structure in self._structures.values())

    def prepare(self, model: Model) -> LoweredModel:
        """Return the model lowered and placed in memory; raise InvalidModelError if it contradicts itself."""
        values = numbers(model)
        verify(model)  # passes rely on it
        structure = self._structures.get_or_make(
            model.structure, lambda: _Structure(Groups.of(values, model.covarying_number_groups))
        )
        for template in structure.templates:
            filled = template.filled(model, values)
            if filled is not None:
                self._keep(structure, template)
                return filled
        return self._traced(model, structure, values) or prepared(lower(model, self._arithmetic), model)

    def clear(self) -> None:
        """Drop all templates."""
        self._structures.clear()

    def _traced(self, model: Model, structure: _Structure, values: Sequence[Any]) -> LoweredModel | None:
        """Return the model by a template of its own; None if it cannot be traced, or that is of no use."""
        if structure.failures >= _MOST_FAILURES or structure.count >= _MOST_TEMPLATES:
            return None
        groups = structure.groups
        groups = groups if groups.variables(values) is not None else groups.refined(values)
        try:
            template = LoweringTemplate(model, groups, values, self._arithmetic)
            filled = template.filled(model, values)
        except Exception:  # noqa: BLE001  an optimization must not fail; the result without it is the same
            structure.failures += 1
            self._structures.counts.failures += 1
            return None
        with self._lock:
            structure.groups = groups
            structure.count += 1
        self._keep(structure, template)
        return filled

    def _keep(self, structure: _Structure, template: LoweringTemplate) -> None:
        """Move a template to the front."""
        with self._lock:
            if structure.templates[:1] != (template,):
                others = (other for other in structure.templates if other is not template)
                structure.templates = (template, *others)[:_TEMPLATES]
