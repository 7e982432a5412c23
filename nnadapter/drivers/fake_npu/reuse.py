"""One lowering for many sizes: what was decided for a model is used again for the same model in other sizes.

1. A model may say which of its numbers vary. If it does not, it is lowered as it is: a model of fixed sizes is all
   there ever is of its structure. The second model of that structure then tells which numbers differ.
2. Those become traced numbers, one for all places that hold the same number always, and the model is lowered with
   them: a `LoweringTemplate`.
3. Every further one is the template with its own numbers put in, if they are the same wherever they were the same
   before, and every answer that the lowering asked for holds. If not, it is traced again: more places are told
   apart, or other answers are noted, in one more template.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from nnadapter.drivers.fake_npu.graph import NpuGraph, NpuTensor, TensorType
from nnadapter.drivers.fake_npu.lowering import Lowered, lower
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import numbers, with_numbers
from nnadapter.ir.tracing import Interned, Trace, is_traced
from nnadapter.ir.verify import verify

_STRUCTURES = 64
"""Models that are remembered; the one used longest ago goes first."""
_MOST_OLD_BYTES = 16 << 20
"""Of constants that other models than the newest hold."""
_TEMPLATES = 8
"""Templates per structure; beyond them the one used longest ago goes."""
_MOST_FAILURES = 4
"""Tracing is given up for a structure where it failed so often."""


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
        """What is known after one model: what it says itself, see `Model.varying`."""
        labels = list(_comparable(values))
        for number, places in enumerate(varying):
            for place in places:
                labels[place] = ("group", number)
        changing = {place for places in varying for place in places}
        fixed = tuple(place for place in range(len(values)) if place not in changing)
        return cls(tuple(labels), fixed, tuple(map(tuple, varying)))

    def refined(self, values: Sequence[Any]) -> Groups:
        """The groups after one more model."""
        found = _comparable(values)
        fixed = [place for place in self.fixed if found[place] == self.labels[place]]
        rest = sorted(set(range(len(values))) - set(fixed))
        groups: dict[Hashable, list[int]] = {}
        for place in rest:
            groups.setdefault((self.labels[place], found[place]), []).append(place)
        labels = list(self.labels)
        for number, places in enumerate(groups.values()):
            for place in places:
                labels[place] = ("group", number)
        return Groups(tuple(labels), tuple(fixed), tuple(map(tuple, groups.values())))

    def variables(self, values: Sequence[Any]) -> list[Any] | None:
        """One number per group; None if the numbers do not fall into these groups."""
        found = _comparable(values)
        if any(found[place] != self.labels[place] for place in self.fixed):
            return None
        if any(found[place] != found[places[0]] for places in self.groups for place in places):
            return None
        return [values[places[0]] for places in self.groups]


def _comparable(values: Sequence[Any]) -> Sequence[Hashable]:
    """The numbers, floats as texts: NaN is the same number as NaN here, and 0.0 is not -0.0."""
    return [repr(value) if type(value) is float else value for value in values]


class LoweringTemplate:
    """A lowered model whose sizes are traced numbers."""

    def __init__(self, model: Model, groups: Groups, values: Sequence[Any], *, half_precision: bool) -> None:
        self._groups = groups
        self._trace = Trace()
        traced = list(values)
        variables = [self._trace.variable(values[places[0]]) for places in groups.groups]
        for variable, places in zip(variables, groups.groups, strict=True):
            for place in places:
                traced[place] = variable
        self._lowered = lower(with_numbers(model, traced), half_precision=half_precision)
        graph = self._lowered.graph
        self._values = Interned()
        self._types: dict[tuple[str, int], int] = {}
        self._tensors = [
            (index, self._types.setdefault((tensor.type.dtype, self._values.add(dimensions)), len(self._types)))
            for index, tensor in enumerate(graph.tensors)
            if is_traced(dimensions := tensor.type.dimensions)
        ]
        self._instructions = [
            (index, {name: self._values.add(value) for name, value in instruction.parameters.items()})
            for index, instruction in enumerate(graph.instructions)
            if any(map(is_traced, instruction.parameters.values()))
        ]

    def filled(self, values: Sequence[Any]) -> Lowered | None:
        """The lowered model for other numbers, None if it would not be this one."""
        variables = self._groups.variables(values)
        known = None if variables is None else self._trace.replay(variables)
        if known is None:
            return None
        graph, plain = self._lowered.graph, self._values.settled(known)
        types = [TensorType(dtype, plain[dimensions]) for dtype, dimensions in self._types]
        tensors, instructions = list(graph.tensors), list(graph.instructions)
        for index, type_ in self._tensors:
            tensors[index] = NpuTensor(types[type_], tensors[index].value, tensors[index].view_of)
        for index, parameters in self._instructions:
            filled = {name: plain[value] for name, value in parameters.items()}
            instructions[index] = replace(instructions[index], parameters=filled)
        filled_graph = NpuGraph(tuple(tensors), tuple(instructions), graph.inputs, graph.outputs)
        return replace(self._lowered, graph=filled_graph)


@dataclass(slots=True)
class _Known:
    """What is known of one structure."""

    constants: tuple[Array, ...]
    """Held, because the structure knows them by identity."""
    groups: Groups
    templates: tuple[LoweringTemplate, ...] = ()
    failures: int = 0


class Lowerings:
    """Lowers models, each structure as seldom as possible; safe to use from many threads."""

    def __init__(self, *, half_precision: bool) -> None:
        self._half_precision = half_precision
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._lock = Lock()

    @property
    def templates(self) -> int:
        """How many templates there are."""
        with self._lock:
            return sum(len(known.templates) for known in self._known.values())

    def lower(self, model: Model) -> Lowered:
        """Return the lowered model.

        Raises:
            InvalidModelError: the model is the first of its structure, and contradicts itself: passes rely on models
                that do not, and some would not end.
        """
        with self._lock:
            is_new = model.structure not in self._known
        if is_new:
            verify(model)
        values = numbers(model)
        known = self._look_up(model, values)
        for template in known.templates:
            filled = template.filled(values)
            if filled is not None:
                self._keep(known, template)
                return filled
        return self._traced(model, known, values) or lower(model, half_precision=self._half_precision)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()

    def _traced(self, model: Model, known: _Known, values: Sequence[Any]) -> Lowered | None:
        """The model by a template of its own; None where nothing varies, or it cannot be traced."""
        groups = known.groups if known.groups.variables(values) is not None else known.groups.refined(values)
        if not groups.groups or known.failures >= _MOST_FAILURES:
            return None
        try:
            template = LoweringTemplate(model, groups, values, half_precision=self._half_precision)
        except Exception:  # noqa: BLE001  what saves work must not be what fails; nothing traced gives the same
            known.failures += 1
            return None
        with self._lock:
            known.groups = groups
        self._keep(known, template)
        return template.filled(values)

    def _keep(self, known: _Known, template: LoweringTemplate) -> None:
        """Let a template be the first that is tried; the one used longest ago goes."""
        with self._lock:
            if known.templates[:1] != (template,):
                others = (other for other in known.templates if other is not template)
                known.templates = (template, *others)[:_TEMPLATES]

    def _look_up(self, model: Model, values: Sequence[Any]) -> _Known:
        with self._lock:
            known = self._known.get(model.structure)
            if known is None:
                known = self._known[model.structure] = _Known(_constants(model), Groups.of(values, model.varying))
                self._trim(known)
            self._known.move_to_end(model.structure)
        return known

    def _trim(self, newest: _Known) -> None:
        """Drop what was used longest ago: too many structures, or too many constants that only old ones hold.

        The latter are tables that follow from sizes: other arrays for every shape.
        """
        shared = {id(array) for array in newest.constants}
        extra = {id(array): array.nbytes for known in self._known.values() for array in known.constants}
        total = sum(nbytes for key, nbytes in extra.items() if key not in shared)
        while len(self._known) > 1 and (len(self._known) > _STRUCTURES or total > _MOST_OLD_BYTES):
            _, oldest = self._known.popitem(last=False)
            held = {id(array) for known in self._known.values() for array in known.constants}
            total -= sum(array.nbytes for array in oldest.constants if id(array) not in held)


def _constants(model: Model) -> tuple[Array, ...]:
    return tuple(operand.value for operand in model.operands if operand.value is not None)
