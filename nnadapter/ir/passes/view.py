"""Views: an operand reshaped and then transposed, with nothing done yet."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Axes = tuple[int, ...]

FROM_NCHW: Axes = (0, 2, 3, 1)
"""The order of the axes that makes [N, H, W, C] of [N, C, H, W]."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """`source` reshaped to `shape`, then transposed by `perm`."""

    source: int
    """An operand."""
    shape: Axes
    perm: Axes
    parent: View | None = None
    """The view that it was made from, whose operations it stands for as well."""
    operation: int | None = None
    """The operation that it stands for."""

    @property
    def dimensions(self) -> Axes:
        """The dimensions of what is seen."""
        return tuple(self.shape[axis] for axis in self.perm)

    @property
    def is_identity(self) -> bool:
        """Nothing is transposed but axes of size 1."""
        moved = [axis for axis in self.perm if self.shape[axis] != 1]
        return moved == sorted(moved)

    @property
    def operations(self) -> tuple[int, ...]:
        """The operations that the view stands for, the last one first."""
        indices: list[int] = []
        view: View | None = self
        while view is not None:
            if view.operation is not None:
                indices.append(view.operation)
            view = view.parent
        return tuple(indices)

    def transposed(self, perm: Axes, operation: int | None = None) -> View:
        """What TRANSPOSE by `perm` makes of it."""
        return View(self.source, self.shape, tuple(self.perm[axis] for axis in perm), self, operation)

    def reshaped(self, dimensions: Axes, operation: int | None = None) -> View | None:
        """What RESHAPE to `dimensions` makes of it, or None if that can only be said after transposing."""
        if self.is_identity:
            return View(self.source, dimensions, tuple(range(len(dimensions))), self, operation)
        groups = _groups(self.dimensions, dimensions)
        if groups is None:
            return None
        groups.sort(key=lambda group: self.perm[group[0][0]])
        order = [self.perm[axis] for old, _ in groups for axis in old]
        if order != sorted(order):
            return None
        placed = [axis for _, new in groups for axis in new]
        placed += [axis for axis, size in enumerate(dimensions) if size == 1]
        perm = [0] * len(dimensions)
        for position, axis in enumerate(placed):
            perm[axis] = position
        return View(self.source, tuple(dimensions[axis] for axis in placed), tuple(perm), self, operation)


def _groups(old: Axes, new: Axes) -> list[tuple[list[int], list[int]]] | None:
    """The smallest runs of axes, those of size 1 left out, whose sizes have the same product; None if empty."""
    if prod(old) == 0 or prod(old) != prod(new):
        return None
    left = [axis for axis, size in enumerate(old) if size != 1]
    right = [axis for axis, size in enumerate(new) if size != 1]
    groups, taken = [], 0
    first = 0
    while first < len(left):
        before, after = [left[first]], [right[taken]]
        first, taken = first + 1, taken + 1
        while (sizes := (prod(old[axis] for axis in before), prod(new[axis] for axis in after)))[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                before.append(left[first])
                first += 1
            else:
                after.append(right[taken])
                taken += 1
        groups.append((before, after))
    return groups
