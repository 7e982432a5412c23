"""Guarded shapes: input shapes for which the guards of one plan hold, and values derived from shapes.

What segments are given that follows from shapes alone: single sizes and shapes, and tables, for the sizes that come.

Tables (a mask made by Range, a slice of positions) are what the operations say that make them, by the definition of the
adapter IR, computed on the host.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, freeze
from nnadapter.ir.structure import SymbolicModel, numbers
from nnadapter.ir.symbolic_numbers import Constant, Step, SymbolicNumber, SymbolicTrace, exactly, size_hint, slot_reader


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicArray:
    """An array whose elements may be traced."""

    items: Array
    """Python numbers and traced ones, of numpy type `object`."""
    dtype: np.dtype[Any]
    """The type that the model has."""

    @classmethod
    def of(cls, array: Array) -> SymbolicArray:
        """The same contents; nothing is traced yet."""
        return cls(array.astype(object), array.dtype)

    @property
    def is_traced(self) -> bool:
        """Whether an element is a traced number."""
        return any(isinstance(item, SymbolicNumber) for item in self.items.flat)

    def plain(self) -> Array:
        """The contents now, on which something is decided from here on."""
        for item in self.items.flat:
            if isinstance(item, SymbolicNumber):
                item.trace.guard(item)
        return self.current_contents()

    def current_contents(self) -> Array:
        """The contents for the sizes that are traced."""
        return self._to_array(list(map(size_hint, self.items.flat)))

    def specialize(self, replay_values: Sequence[Any]) -> Array:
        """The contents for the sizes of a replay."""
        return self._to_array(
            [replay_values[item.number] if type(item) is SymbolicNumber else item for item in self.items.flat]
        )

    def _to_array(self, items: list[Any]) -> Array:
        array = np.array(items, self.dtype).reshape(self.items.shape)
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class ShapeDerivedTables:
    """Operations that make tables, as one model."""

    model: Model
    """Of traced numbers."""
    sizes: Mapping[str, SymbolicArray]
    """What it reads, in the order of its inputs."""
    outputs: tuple[str, ...]

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)

    def at(self, replay_values: Sequence[Any]) -> dict[str, Array]:
        """The tables with the numbers of a replay."""
        from nnadapter.ir.definition import by_definition  # of every operation, and few models have tables

        tables = by_definition(
            self._traced.specialize(replay_values), [array.specialize(replay_values) for array in self.sizes.values()]
        )
        return {name: freeze(array) for name, array in zip(self.outputs, tables, strict=True)}


class ShapeDerivedValues:
    """Values by name, for the sizes of a replay.

    Args:
        names: of all of them.
        sizes: those that are single sizes and shapes.
        tables: makes the others; None where there are none.
    """

    def __init__(
        self, names: Iterable[str], sizes: Mapping[str, SymbolicArray], tables: ShapeDerivedTables | None
    ) -> None:
        self.names, self.sizes, self.tables = tuple(names), sizes, tables
        self._last: tuple[Sequence[Any], Mapping[str, Array]] | None = None

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Numbers of the trace that say what the values are."""
        tables = self.tables
        arrays = (*self.sizes.values(), *(tables.sizes.values() if tables is not None else ()))
        items = (item for array in arrays for item in array.items.flat)
        of_tables = numbers(tables.model) if tables is not None else ()
        return frozenset(value.number for value in (*of_tables, *items) if isinstance(value, SymbolicNumber))

    def at(self, replay_values: Sequence[Any]) -> Mapping[str, Array]:
        """The values with the numbers of a replay.

        Raises:
            OverflowError: a size that the model's own type cannot hold.
        """
        last = self._last
        if last is not None and last[0] is replay_values:  # as in a run like the one before
            return last[1]
        values = {name: array.specialize(replay_values) for name, array in self.sizes.items()}
        if self.tables is not None:
            values |= self.tables.at(replay_values)
        self._last = replay_values, values
        return values


_DEEPEST = 4
_SIGNS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {
        operator.add: "+",
        operator.sub: "-",
        operator.mul: "*",
        operator.floordiv: "//",
        operator.truediv: "/",
        operator.mod: "%",
        operator.eq: "==",
        operator.ne: "!=",
        operator.lt: "<",
        operator.le: "<=",
        operator.gt: ">",
        operator.ge: ">=",
    }
)


def broken(trace: SymbolicTrace, variables: Sequence[int], names: Sequence[str]) -> str:
    """What would be decided otherwise for other variables, in the fewest words; empty if nothing would.

    Args:
        trace: of some variables.
        variables: others, as for `SymbolicTrace.replay`.
        names: what the variables are called.
    """
    steps = trace.steps
    values = _computed(steps, variables)
    if values is None:
        return "sizes cannot be computed"
    texts = [
        f"{_text(steps, number, names)} is {values[number]}, was {answer}"
        for number, answer in trace.answers.items()
        if exactly(values[number]) != exactly(answer)
    ]
    return min(texts, key=lambda text: ("..." in text, len(text)), default="")


def _computed(steps: Sequence[Step], variables: Sequence[int]) -> list[Any] | None:
    """Every number for other variables; None if one cannot be computed."""
    values: list[Any] = list(variables)
    try:
        for function, first, second in steps:
            values.append(function(values[first]) if second < 0 else function(values[first], values[second]))
    except (ArithmeticError, ValueError):
        return None
    return values


def _text(steps: Sequence[Step], number: int, names: Sequence[str], depth: int = _DEEPEST) -> str:
    if number < len(names):
        return names[number]
    function, first, second = steps[number - len(names)]
    if isinstance(function, Constant):
        return repr(function.value)
    if not depth:
        return "..."
    inner = [_text(steps, operand, names, depth - 1) for operand in (first, second) if operand >= 0]
    sign = _SIGNS.get(function)
    if sign is None or len(inner) != 2:
        return f"{getattr(function, '__name__', 'a function')}({', '.join(inner)})"
    text = f"{inner[0]} {sign} {inner[1]}"
    return text if depth == _DEEPEST else f"({text})"


Shapes = Mapping[str, tuple[int, ...]]
"""By input."""


@dataclass(frozen=True, eq=False)
class GuardedShapes:
    """Sizes as numbers that follow from the shapes of inputs, and the conditions on them."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: SymbolicTrace
    contents: ShapeDerivedValues
    """What segments are given of shapes in every run."""

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def sizes(self, shapes: Shapes) -> Sequence[Any] | None:
        """Every number at these shapes; None if they are of another class."""
        variables = self._dimensions.variables(shapes)
        return None if variables is None else self.trace.replay(variables)

    def match(self, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Whether these shapes are of it, and every number there."""
        sizes = self.sizes(shapes)
        return sizes is not None, sizes

    def shape_derived_values_at(self, sizes: Sequence[Any]) -> Mapping[str, Array]:
        """What segments are given at these sizes; see `ShapeDerivedValues`."""
        return self.contents.at(sizes)

    def failed_guard(self, shapes: Shapes) -> str:
        """Which condition these shapes break first, in words; empty if they are of the class."""
        variables = self._dimensions.variables(shapes)
        if variables is None:
            return "another number of dimensions, or sizes that the model fixes"
        names = [
            f"{name}[{axis}]"
            for name, dimensions in self.shapes.items()
            for axis, size in enumerate(dimensions)
            if isinstance(size, SymbolicNumber)
        ]
        return broken(self.trace, variables, names)


class DynamicDimensions:
    """Which dimensions of a model's inputs are traced; the others are what they are.

    Every run at new shapes asks it, so where the traced ones stand is worked out once.

    Args:
        traced: per input, its dimensions, traced where the model leaves them open.
    """

    def __init__(self, traced: Mapping[str, tuple[Any, ...]]) -> None:
        self._names, self._ranks = tuple(traced), list(map(len, traced.values()))
        every = list(chain.from_iterable(traced.values()))
        self._variables = slot_reader([place for place, size in enumerate(every) if type(size) is SymbolicNumber])
        self._others = slot_reader([place for place, size in enumerate(every) if type(size) is not SymbolicNumber])
        self._expected = self._others(every)

    def variables(self, shapes: Shapes) -> Sequence[int] | None:
        """The sizes that stand for traced dimensions, in their order; None if the shapes differ elsewhere."""
        input_shapes: list[Any] = list(map(shapes.get, self._names))
        if len(shapes) != len(input_shapes) or None in input_shapes or list(map(len, input_shapes)) != self._ranks:
            return None
        every = tuple(chain.from_iterable(input_shapes))
        return self._variables(every) if self._others(every) == self._expected else None
