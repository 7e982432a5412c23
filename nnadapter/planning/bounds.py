"""Bounds of dynamic sizes: those of devices, and the shapes between which a plan holds.

Whether tensors of a model that leaves sizes open lie within the bounds that a device gives.

Each question is decided on traced numbers, so that the answers hold for every run: sizes beyond them are of another
class, for which the device is asked again.

At which shapes a plan whose sizes are open holds: those between shapes at which it was looked through.

A plan with open sizes is for tensors that have elements, and for sizes that fold the same nodes. What lies within the
model may come to have none at some sizes (`x[1:]` of one row). So a model is worked out at the least and the largest
sizes that come, and nothing between is: sizes of models grow with those of inputs, or shrink with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf, prod
from operator import le
from typing import Any

from nnadapter.drivers.capability import Capability, DimensionBounds, DynamicShapes
from nnadapter.ir.model import Model
from nnadapter.ir.symbolic_numbers import SymbolicNumber, is_symbolic, size_hint
from nnadapter.onnx.signature import Shapes


def beyond_bounds(model: Model, capability: Capability) -> str:
    """Return what of a model's open sizes is beyond a device's bounds, in words; nothing if all is within them."""
    bounds = capability.dimension_bounds
    if capability.dynamic_shapes is not DynamicShapes.BOUNDED or bounds is None:
        return ""
    for operand in model.operands:
        dimensions = operand.type.dimensions
        if is_symbolic(dimensions):
            for why in _beyond(dimensions, bounds):
                return f"{operand.name!r} is {list(size_hint(dimensions))}, {why}"
    return ""


def _beyond(dimensions: tuple[Any, ...], bounds: DimensionBounds) -> Iterator[str]:
    for size in dimensions:
        if not isinstance(size, SymbolicNumber):
            continue
        if size < bounds.smallest:
            yield f"its smallest size is {bounds.smallest}"
        if bounds.largest is not None and size > bounds.largest:
            yield f"its largest size is {bounds.largest}"
    if bounds.largest_elements is not None and prod(dimensions) > bounds.largest_elements:
        yield f"a tensor of it has at most {bounds.largest_elements} elements"


_FURTHER = 4
"""How many times the largest size that was looked at may be passed before it is looked again; small ones are alike."""


@dataclass(frozen=True)
class Bounds:
    """The least and the largest size of every dimension at which a plan was looked through.

    Shapes are those of all inputs. Every run of other shapes asks, so sizes lie in rows.
    """

    least: Mapping[str, tuple[int, ...]]
    most: Mapping[str, tuple[int, ...]]
    unread: frozenset[str] = frozenset()
    """Inputs that nobody reads, which may have any sizes."""

    @cached_property
    def _rows(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        low = (0 if name in self.unread else size for name, shape in self.least.items() for size in shape)
        high = (inf if name in self.unread else size * _FURTHER for name, shape in self.most.items() for size in shape)
        return tuple(low), tuple(high)

    def hold(self, shapes: Shapes) -> bool:
        """Whether the plan is known to hold at these shapes."""
        low, high = self._rows
        sizes = tuple(chain.from_iterable(map(shapes.__getitem__, self.least)))
        return all(map(le, low, sizes)) and all(map(le, sizes, high))

    @property
    def largest(self) -> Shapes:
        """The largest sizes at which the plan is known to hold."""
        return {name: tuple(size * _FURTHER for size in shape) for name, shape in self.most.items()}

    @property
    def ends(self) -> tuple[Shapes, Shapes]:
        """The shapes of the least and of the largest sizes."""
        return self.least, self.most

    def widened(self, shapes: Shapes) -> Bounds:
        """The bounds that hold these shapes as well."""
        return Bounds(
            {name: tuple(map(min, self.least[name], shape)) for name, shape in shapes.items()},
            {name: tuple(map(max, self.most[name], shape)) for name, shape in shapes.items()},
            self.unread,
        )


def nearby(shapes: Shapes) -> Bounds:
    """Return where costs are taken to be in the proportions that they are in at these shapes: every size is alike."""
    least = {name: tuple(size // _FURTHER for size in shape) for name, shape in shapes.items()}
    return Bounds(least, {name: tuple(max(size, _FURTHER) for size in shape) for name, shape in shapes.items()})
