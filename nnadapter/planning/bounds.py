"""Bounds of dynamic sizes: limits that a device declares, and the smallest and largest sizes of a dynamic plan.

A dynamic plan needs non-empty tensors and the same folded nodes at all sizes. It is checked by specialization at its
smallest and largest sizes. Sizes inside a model are assumed to change monotonically with its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from math import inf, prod
from operator import le
from typing import Any

from nnadapter.drivers.capability import Capability, DimensionBounds, DynamicShapes
from nnadapter.ir.model import Model
from nnadapter.ir.symbolic_numbers import SymbolicNumber, is_symbolic, size_hint
from nnadapter.onnx.signature import Shapes
from nnadapter.records import dataclass


def beyond_bounds(model: Model, capability: Capability) -> str:
    """Return how a model's dynamic sizes exceed a device's bounds; empty if they do not.

    The comparisons set guards. For sizes that violate a guard, the device is asked again.
    """
    bounds = capability.dimension_bounds
    if capability.dynamic_shapes is not DynamicShapes.BOUNDED or bounds is None:
        return ""
    for operand in model.operands:
        dimensions = operand.type.dimensions
        if is_symbolic(dimensions):
            for reason in _beyond(dimensions, bounds):
                return f"{operand.name!r} is {list(size_hint(dimensions))}, {reason}"
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
"""Factor by which sizes may exceed the largest checked size."""


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest checked size per input dimension of a dynamic plan, flattened for fast comparison."""

    least: Mapping[str, tuple[int, ...]]
    most: Mapping[str, tuple[int, ...]]
    unread: frozenset[str] = frozenset()

    @cached_property
    def _rows(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        low = (0 if name in self.unread else size for name, shape in self.least.items() for size in shape)
        high = (inf if name in self.unread else size * _FURTHER for name, shape in self.most.items() for size in shape)
        return tuple(low), tuple(high)

    def hold(self, shapes: Shapes) -> bool:
        low, high = self._rows
        sizes = tuple(chain.from_iterable(map(shapes.__getitem__, self.least)))
        return all(map(le, low, sizes)) and all(map(le, sizes, high))

    @property
    def largest(self) -> Shapes:
        return {name: tuple(size * _FURTHER for size in shape) for name, shape in self.most.items()}

    @property
    def ends(self) -> tuple[Shapes, Shapes]:
        return self.least, self.most

    def widened(self, shapes: Shapes) -> Bounds:
        return Bounds(
            {name: tuple(map(min, self.least[name], shape)) for name, shape in shapes.items()},
            {name: tuple(map(max, self.most[name], shape)) for name, shape in shapes.items()},
            self.unread,
        )


def nearby(shapes: Shapes) -> Bounds:
    """Return bounds around `shapes`; within them, the ratios of costs are assumed to be constant."""
    least = {name: tuple(size // _FURTHER for size in shape) for name, shape in shapes.items()}
    return Bounds(least, {name: tuple(max(size, _FURTHER) for size in shape) for name, shape in shapes.items()})
