"""Axes that can be treated as one: neighbors to which the same happens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from nnadapter.ir.passes.view import Axes

Groups = list[list[int]]
"""Axes, ascending; each group is one axis of the merged operand."""


def grouped(kinds: Sequence[Hashable | None]) -> Groups:
    """Put neighboring axes of one kind together; None is the kind of an axis of size 1, which fits any group."""
    groups: Groups = []
    loose: list[int] = []
    latest: Hashable | None = None
    for axis, kind in enumerate(kinds):
        if kind is None:
            (groups[-1] if groups else loose).append(axis)
        elif groups and kind == latest:
            groups[-1].append(axis)
        else:
            groups.append([*loose, axis])
            loose, latest = [], kind
    return [*groups, loose] if loose else groups


def merged(dimensions: Axes, groups: Groups) -> Axes:
    """The dimensions of an operand whose groups of axes are one axis each."""
    return tuple(prod(dimensions[axis] for axis in group) for group in groups)


def positions(groups: Groups) -> dict[int, int]:
    """Which axis of the merged operand an axis is in."""
    return {axis: position for position, group in enumerate(groups) for axis in group}


def around(dimensions: Axes, axis: int) -> Axes:
    """The dimensions with everything before an axis merged to one, and everything behind it."""
    return prod(dimensions[:axis]), dimensions[axis], prod(dimensions[axis + 1 :])


def raised(dimensions: Axes, rank: int) -> Axes:
    """The dimensions with axes of size 1 before them, as broadcasting puts them there."""
    return (*[1] * (rank - len(dimensions)), *dimensions)
