"""A class of shapes: what a plan made for some sizes was decided on, and with that for which others it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from nnadapter.ir.broken_answers import broken
from nnadapter.ir.given import Given
from nnadapter.ir.operand import Array
from nnadapter.ir.replaying import taking
from nnadapter.ir.tracing import Trace, Traced

Shapes = Mapping[str, tuple[int, ...]]
"""By input."""


@dataclass(frozen=True, eq=False)
class GuardedShapes:
    """Sizes as numbers that follow from the shapes of inputs, and the conditions on them."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: Trace
    contents: Given
    """What segments are given of shapes in every run."""

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def sizes(self, shapes: Shapes) -> Sequence[Any] | None:
        """Every number at these shapes; None if they are of another class."""
        variables = self._dimensions.variables(shapes)
        return None if variables is None else self.trace.replay(variables)

    def at(self, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Whether these shapes are of it, and every number there."""
        sizes = self.sizes(shapes)
        return sizes is not None, sizes

    def given(self, sizes: Sequence[Any]) -> Mapping[str, Array]:
        """What segments are given at these sizes; see `Given.at`."""
        return self.contents.at(sizes)

    def broken(self, shapes: Shapes) -> str:
        """Which condition these shapes break first, in words; empty if they are of the class."""
        variables = self._dimensions.variables(shapes)
        if variables is None:
            return "another number of dimensions, or sizes that the model fixes"
        names = [
            f"{name}[{axis}]"
            for name, dimensions in self.shapes.items()
            for axis, size in enumerate(dimensions)
            if isinstance(size, Traced)
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
        self._variables = taking([place for place, size in enumerate(every) if type(size) is Traced])
        self._others = taking([place for place, size in enumerate(every) if type(size) is not Traced])
        self._expected = self._others(every)

    def variables(self, shapes: Shapes) -> Sequence[int] | None:
        """The sizes that stand for traced dimensions, in their order; None if the shapes differ elsewhere."""
        input_shapes: list[Any] = list(map(shapes.get, self._names))
        if len(shapes) != len(input_shapes) or None in input_shapes or list(map(len, input_shapes)) != self._ranks:
            return None
        every = tuple(chain.from_iterable(input_shapes))
        return self._variables(every) if self._others(every) == self._expected else None
