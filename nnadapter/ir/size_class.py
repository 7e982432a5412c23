"""A class of shapes: what a plan made for some sizes was decided on, and with that for which others it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.ir.given import Given
from nnadapter.ir.operand import Array
from nnadapter.ir.tracing import Trace, Traced

Shapes = Mapping[str, tuple[int, ...]]
"""By input."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeClass:
    """Sizes as numbers that follow from the shapes of inputs, and the conditions on them."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: Trace
    contents: Given
    """What segments are given of shapes in every run."""

    def sizes(self, shapes: Shapes) -> Sequence[Any] | None:
        """Every number at these shapes; None if they are of another class."""
        variables = open_dimensions(self.shapes, shapes)
        return None if variables is None else self.trace.replay(variables)

    def given(self, sizes: Sequence[Any]) -> Mapping[str, Array]:
        """What segments are given at these sizes; see `Given.at`."""
        return self.contents.at(sizes)

    def broken(self, shapes: Shapes) -> str:
        """Which condition these shapes break first, in words; empty if they are of the class."""
        variables = open_dimensions(self.shapes, shapes)
        if variables is None:
            return "another number of dimensions, or sizes that the model fixes"
        names = [
            f"{name}[{axis}]"
            for name, dimensions in self.shapes.items()
            for axis, size in enumerate(dimensions)
            if isinstance(size, Traced)
        ]
        return self.trace.broken(variables, names)


def open_dimensions(traced: Mapping[str, tuple[Any, ...]], shapes: Shapes) -> list[int] | None:
    """Return the sizes that stand for traced dimensions, in their order; None if the shapes differ elsewhere."""
    if shapes.keys() != traced.keys():
        return None
    variables = []
    for name, dimensions in traced.items():
        sizes = shapes[name]
        if len(sizes) != len(dimensions):
            return None
        for size, dimension in zip(sizes, dimensions, strict=True):
            if type(dimension) is Traced:
                variables.append(size)
            elif size != dimension:
                return None
    return variables
