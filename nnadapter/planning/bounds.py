"""At which shapes a plan whose sizes are open holds: those between shapes at which it was looked through.

A plan with open sizes is for tensors that have elements, and for sizes that fold the same nodes. What lies within the
model may come to have none at some sizes (`x[1:]` of one row). So a model is worked out at the least and the largest
sizes that come, and nothing between is: sizes of models grow with those of inputs, or shrink with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from operator import le

from nnadapter.onnx.signature import Shapes

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
