"""Views of operands (reshaped, then transposed), and attributes under another order of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from nnadapter.ir.operations import elementwise, quantization, reduction
from nnadapter.ir.operations.windows import IMAGES
from nnadapter.ir.schema import Attributes

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
        order = [self.perm[axis] for source_axes, _ in groups for axis in source_axes]
        if order != sorted(order):
            return None
        placed = [axis for _, target_axes in groups for axis in target_axes]
        placed += [axis for axis, size in enumerate(dimensions) if size == 1]
        perm = [0] * len(dimensions)
        for position, axis in enumerate(placed):
            perm[axis] = position
        return View(self.source, tuple(dimensions[axis] for axis in placed), tuple(perm), self, operation)


def _groups(source_shape: Axes, target_shape: Axes) -> list[tuple[list[int], list[int]]] | None:
    """The smallest runs of axes, those of size 1 left out, whose sizes have the same product; None if empty."""
    if prod(source_shape) == 0 or prod(source_shape) != prod(target_shape):
        return None
    left = [axis for axis, size in enumerate(source_shape) if size != 1]
    right = [axis for axis, size in enumerate(target_shape) if size != 1]
    groups, second = [], 0
    first = 0
    while first < len(left):
        source_run, target_run = [left[first]], [right[second]]
        first, second = first + 1, second + 1
        while (
            sizes := (prod(source_shape[axis] for axis in source_run), prod(target_shape[axis] for axis in target_run))
        )[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                source_run.append(left[first])
                first += 1
            else:
                target_run.append(right[second])
                second += 1
        groups.append((source_run, target_run))
    return groups


Remap = Callable[[Attributes, Axes], Mapping[str, Any]]
"""The attributes, and which old axis comes where -> the attributes that change."""


IMAGE = IMAGES | {"RESIZE_NEAREST", "RESIZE_LINEAR"}
"""Operations that want NHWC; all inputs but the first stay as they are."""

ELEMENTWISE = frozenset(row.type for row in (*elementwise.ROWS, *quantization.ROWS))
"""Operations that are the same in every layout; inputs broadcast."""

REDUCING = frozenset(row.type for row in reduction.ROWS if row.attribute("keepdims"))
"""Operations that may take axes away."""


def _unchanged(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {}


def _axis(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {"axis": perm.index(_as_int(attributes["axis"]))}


def _axes(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {"axes": tuple(sorted(map(perm.index, _list(attributes["axes"]))))}


def _permuted(*names: str) -> Remap:
    def remap(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
        return {name: tuple(_list(attributes[name])[axis] for axis in perm) for name in names}

    return remap


def _pads(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    pads = _list(attributes["pads"])
    return {"pads": tuple(pads[end + axis] for end in (0, len(perm)) for axis in perm)}


def _slices(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    names = ("axes", "starts", "ends", "steps")
    axes, *columns = (_list(attributes[name]) for name in names)
    rows = sorted(zip(map(perm.index, axes), *columns, strict=True), key=lambda row: row[0])
    return {name: tuple(row[position] for row in rows) for position, name in enumerate(names)}


def _list(value: Any) -> tuple[Any, ...]:
    return tuple(value)


def _as_int(value: Any) -> int:
    return int(value)


REMAP: Mapping[str, Remap] = {
    **dict.fromkeys(IMAGE | ELEMENTWISE, _unchanged),
    **dict.fromkeys(("CONCAT", "SPLIT", "SOFTMAX", "LOG_SOFTMAX", "CUM_SUM", "TOP_K", "ARG_MAX", "ARG_MIN"), _axis),
    **dict.fromkeys(REDUCING - {"ARG_MAX", "ARG_MIN"}, _axes),
    **dict.fromkeys(("RESIZE_NEAREST", "RESIZE_LINEAR"), _permuted("shape", "scales")),
    **dict.fromkeys(("CUM_PROD", "HARDMAX"), _axis),
    "TILE": _permuted("repeats"),
    "SLICE": _slices,
    "PAD": _pads,
}
"""By operation type; an operation that is not here wants NCHW."""


def remaining_axes(type_: str, attributes: Attributes, perm: Axes) -> tuple[int, ...]:
    """The axes of a result in their old numbers, in the order in which they stand after `perm`.

    Args:
        type_: the operation's.
        attributes: as they were before.
        perm: which old axis comes where.
    """
    if type_ not in REDUCING or attributes["keepdims"]:
        return perm
    removed_axes = {_as_int(attributes["axis"])} if "axis" in attributes else set(_list(attributes["axes"]))
    return tuple(axis for axis in perm if axis not in removed_axes)
