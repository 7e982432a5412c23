"""Reuse of programs at other sizes: lowered graphs and converted constants.

One lowering for many models: what was decided for a model is used again for others of its structure.

They may differ in sizes, as a model does from shape to shape, and in what constants hold, as the layers of one model
do.

1. A model is lowered with traced constants (`ir.traced_arrays`), and with traced numbers where it says that they vary:
   a `LoweringTemplate`.
2. Every further one is the template with its own constants and numbers put in, if the numbers are the same wherever
   they were the same before, and every answer that the lowering asked for holds. If not, it is traced again: more
   numbers are told apart, or other answers are noted, in one more template.
3. Memory is planned once per template and set of numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor
from nnadapter.drivers.fake_npu.limits import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.lowering import LoweredModel, lower, prepared
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.open_program import SymbolicGraph
from nnadapter.drivers.fake_npu.program import weight_bytes
from nnadapter.ir.derived import ArrayTrace, TracedArray
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import constants, numbers, with_constants, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.ir.verification import verify
from nnadapter.process.resources import Cache, new_lock

_KEPT = 64
"""Sets of constants; the one that was used longest ago goes."""
_References = tuple[weakref.ref[Array], ...]


class BoundConstants:
    """Arrays by the arrays that they were made of, which are known by identity; safe to use from many threads.

    It keeps nothing alive: what is made of constants is held by the programs that use it.
    """

    def __init__(self) -> None:
        self._made: Cache[tuple[int, ...], tuple[_References, _References]] = Cache("fake_npu: constants", _KEPT)

    def keep(self, constant_arrays: Sequence[Array], made: Sequence[Array]) -> None:
        """Note what was made of `constant_arrays`."""
        key = tuple(map(id, constant_arrays))
        self._made.drop(key)  # what stood there was made of arrays that are gone
        self._made.put(key, (tuple(map(weakref.ref, constant_arrays)), tuple(map(weakref.ref, made))))

    def look_up(self, constant_arrays: Sequence[Array]) -> Sequence[Array] | None:
        """What was made of `constant_arrays`; None if that is not known, or has gone meanwhile."""
        known = self._made.get(tuple(map(id, constant_arrays)))
        if known is None:
            return None
        sources, results = known
        if any(source() is not array for source, array in zip(sources, constant_arrays, strict=True)):
            return None
        made = [array for result in results if (array := result()) is not None]
        return made if len(made) == len(results) else None


_STRUCTURES = 64
"""Models that are remembered; the one used longest ago goes first."""
_TEMPLATES = 8
"""Templates per structure; beyond them the one used longest ago goes."""
_SIZES = 4
"""Sets of numbers per template that are kept placed in memory; the oldest goes."""
_MOST_FAILURES = 4
"""Tracing is given up for a structure where it failed so often,"""
_MOST_MADE = 64
"""or where so many templates were made that were of no use to others."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which numbers are the same in every model seen, and which are equal to each other in every model seen."""

    labels: tuple[Hashable, ...]
    """Per place: the number that always stands there, or what its group is known by."""
    fixed: tuple[int, ...]
    """Places whose number never changed."""
    groups: tuple[tuple[int, ...], ...]
    """The other places, those of equal numbers together."""

    @classmethod
    def of(cls, values: Sequence[Any], varying: Sequence[Sequence[int]]) -> Groups:
        """What is known after one model: what it says itself, see `Model.covarying_number_groups`."""
        labels = list(_comparable(values))
        for number, places in enumerate(varying):
            for place in places:
                labels[place] = ("group", number)
        changing = {place for places in varying for place in places}
        fixed = tuple(place for place in range(len(values)) if place not in changing)
        return cls(tuple(labels), fixed, tuple(map(tuple, varying)))

    def refined(self, values: Sequence[Any]) -> Groups:
        """The groups after one more model."""
        comparable_values = _comparable(values)
        fixed = [place for place in self.fixed if comparable_values[place] == self.labels[place]]
        rest = sorted(set(range(len(values))) - set(fixed))
        groups: dict[Hashable, list[int]] = {}
        for place in rest:
            groups.setdefault((self.labels[place], comparable_values[place]), []).append(place)
        labels = list(self.labels)
        for number, places in enumerate(groups.values()):
            for place in places:
                labels[place] = ("group", number)
        return Groups(tuple(labels), tuple(fixed), tuple(map(tuple, groups.values())))

    def variables(self, values: Sequence[Any]) -> list[Any] | None:
        """One number per group; None if the numbers do not fall into these groups."""
        comparable_values = _comparable(values)
        if not self.groups:
            return [] if tuple(comparable_values) == self.labels else None
        if any(comparable_values[place] != self.labels[place] for place in self.fixed):
            return None
        if any(comparable_values[place] != comparable_values[places[0]] for places in self.groups for place in places):
            return None
        return [values[places[0]] for places in self.groups]


def _comparable(values: Sequence[Any]) -> Sequence[Hashable]:
    """The numbers, floats as texts: NaN is the same number as NaN here, and 0.0 is not -0.0."""
    return [repr(value) if type(value) is float else value for value in values]


@dataclass(frozen=True, slots=True, eq=False)
class _Sized:
    """A template filled with numbers, and placed in memory; its constants are still traced."""

    graph: NpuGraph
    memory: MemoryPlan


@dataclass(frozen=True, slots=True)
class _OfModel:
    """What is the same for all sizes of one model."""

    structure: object
    """The model's own: `ir.structure` hands it on to other sizes."""
    weight_bytes: int
    runs_as: tuple[str, ...]


class LoweringTemplate:
    """A lowered model whose sizes are traced numbers, and whose constants are traced arrays."""

    def __init__(self, model: Model, groups: Groups, values: Sequence[Any], arithmetic: Arithmetic = USUAL) -> None:
        self._groups = groups
        self._trace = SymbolicTrace()
        traced = list(values)
        variables = [self._trace.variable(values[places[0]]) for places in groups.groups]
        for variable, places in zip(variables, groups.groups, strict=True):
            for place in places:
                traced[place] = variable
        self._arrays = ArrayTrace(constants(model))
        sized = with_numbers(model, traced) if variables else model
        of_any = with_constants(sized, self._arrays.variables())
        self._lowered = lower(of_any, arithmetic)
        contents = self._arrays.finish()
        graph = self._lowered.graph
        self._graph = SymbolicGraph(graph) if variables else None
        """None where there are no numbers to put in."""
        held: list[tuple[int, object]] = [
            (index, tensor.value) for index, tensor in enumerate(graph.tensors) if tensor.value is not None
        ]
        self._constants = [(index, value.number) for index, value in held if isinstance(value, TracedArray)]
        self._of_model: _OfModel | None = None
        self._bound = BoundConstants()
        self._fresh: Sequence[Array] | None = [contents[number] for _, number in self._constants]
        """Held until the template is filled for the first time, with the model that it is made of."""
        self._bound.keep(constants(model), self._fresh)
        self._sized: Cache[Hashable, _Sized] = Cache("fake_npu: sizes", _SIZES)

    def filled(self, model: Model, values: Sequence[Any]) -> LoweredModel | None:
        """The template with the constants of a model, and `values` for its numbers; None if it would not be this one.

        Safe to use from many threads.
        """
        sized = self._of_size(values)
        arrays = None if sized is None else self._made_of(constants(model))
        self._fresh = None
        if sized is None or arrays is None:
            return None
        graph = sized.graph
        if self._constants:
            tensors = list(graph.tensors)
            for (index, _), array in zip(self._constants, arrays, strict=True):
                tensors[index] = NpuTensor(tensors[index].type, array, tensors[index].view_of)
            graph = NpuGraph(tuple(tensors), graph.instructions, graph.inputs, graph.outputs)
        of_model = self._of_model
        if of_model is None or of_model.structure is not model.structure:
            texts = self._lowered.roles.runs_as(model)
            self._of_model = of_model = _OfModel(model.structure, weight_bytes(graph), texts)
        return LoweredModel(graph, sized.memory, of_model.weight_bytes, of_model.runs_as)

    def _made_of(self, constant_arrays: Sequence[Array]) -> Sequence[Array] | None:
        """The arrays of the template's constants, None where others would have decided something otherwise."""
        made_arrays = self._bound.look_up(constant_arrays)
        if made_arrays is None:
            values = self._arrays.replay(constant_arrays)
            made_arrays = None if values is None else [values[number] for _, number in self._constants]
            if made_arrays is not None:
                self._bound.keep(constant_arrays, made_arrays)
        return made_arrays

    def _of_size(self, values: Sequence[Any]) -> _Sized | None:
        variables = self._groups.variables(values)
        if variables is None:
            return None
        key = tuple(_comparable(variables))
        sized_template = self._sized.get(key)
        if sized_template is not None:
            return sized_template
        graph = self._lowered.graph
        if self._graph is not None:
            known = self._trace.replay(variables)
            if known is None:
                return None
            graph = self._graph.specialize(known)
        return self._sized.put(key, _Sized(graph, plan_memory(graph)))


@dataclass(slots=True)
class _Known:
    """What is known of one structure."""

    groups: Groups
    templates: tuple[LoweringTemplate, ...] = ()
    made: int = 0
    failures: int = 0

    @property
    def hopeless(self) -> bool:
        """Tracing fails, or what was traced is of no use to others."""
        return self.failures >= _MOST_FAILURES or self.made >= _MOST_MADE


class Lowerings:
    """Prepares models, each structure as seldom as possible; safe to use from many threads."""

    def __init__(self, arithmetic: Arithmetic = USUAL) -> None:
        self._arithmetic = arithmetic
        self._known: Cache[Hashable, _Known] = Cache("fake_npu: structures", _STRUCTURES)
        self._lock = new_lock()

    @property
    def templates(self) -> int:
        """How many templates there are."""
        return sum(len(known.templates) for known in self._known.values())

    def prepare(self, model: Model) -> LoweredModel:
        """Return the model lowered and placed in memory.

        Raises:
            InvalidModelError: the model contradicts itself: passes rely on models that do not, and some would not end.
        """
        values = numbers(model)
        known = self._look_up(model, values)
        for template in known.templates:
            filled = template.filled(model, values)
            if filled is not None:
                self._keep(known, template)
                return filled
        return self._traced(model, known, values) or prepared(lower(model, self._arithmetic), model)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def _traced(self, model: Model, known: _Known, values: Sequence[Any]) -> LoweredModel | None:
        """The model by a template of its own; None where it cannot be traced, or that is of no use."""
        groups = known.groups if known.groups.variables(values) is not None else known.groups.refined(values)
        if known.hopeless:
            return None
        try:
            template = LoweringTemplate(model, groups, values, self._arithmetic)
            filled = template.filled(model, values)
        except Exception:  # noqa: BLE001  what saves work must not be what fails; nothing traced gives the same
            known.failures += 1
            self._known.counts.failures += 1
            return None
        with self._lock:
            known.groups = groups
            known.made += 1
        self._keep(known, template)
        return filled

    def _keep(self, known: _Known, template: LoweringTemplate) -> None:
        """Let a template be the first that is tried; the one used longest ago goes."""
        with self._lock:
            if known.templates[:1] != (template,):
                others = (other for other in known.templates if other is not template)
                known.templates = (template, *others)[:_TEMPLATES]

    def _look_up(self, model: Model, values: Sequence[Any]) -> _Known:
        verify(model)
        structure = model.structure
        return self._known.get_or_make(structure, lambda: _Known(Groups.of(values, model.covarying_number_groups)))
