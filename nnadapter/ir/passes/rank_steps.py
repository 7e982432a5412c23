"""Operations that do something along some axes, together or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.ir.model import Operation
from nnadapter.ir.passes.remapping import REDUCING
from nnadapter.ir.passes.view import Axes
from nnadapter.ir.tracing import told_apart

Touched = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """How such an operation is done on merged axes."""

    touched: Callable[[Sequence[int], Axes, Operation], Touched]
    """Dimensions before and behind it -> the axes along which it does something."""
    attributes: Callable[[Operation, Mapping[int, int], Axes], Mapping[str, Any]]
    """Where each axis that is touched stands now, and the result's dimensions -> the attributes."""
    joins: bool = False
    """Neighboring axes can be treated as one."""
    repeats: bool = True
    """One axis after the other gives the same."""
    repeats_integers: bool = True
    """So it does for integers."""

    def result(self, dimensions: Axes, operation: Operation) -> Axes:
        """The dimensions of the result, with axes of size 1 where a reduction has taken them away."""
        if operation.attributes.get("keepdims", True):
            return dimensions
        expanded_shape = list(dimensions)
        for axis in _ints(operation, "axes"):
            expanded_shape.insert(axis, 1)
        return tuple(expanded_shape)

    def may_repeat(self, floating: bool) -> bool:
        """Whether the operation may be done one axis after the other."""
        return self.repeats and (floating or self.repeats_integers)


def _ints(operation: Operation, name: str) -> Axes:
    return operation.attributes[name]  # type: ignore[return-value]


def _is(value: object, number: int) -> bool:
    """That very number, known for all sizes."""
    return type(value) is int and value == number


def _named(input_shape: Sequence[int], output_shape: Axes, operation: Operation) -> Touched:
    return frozenset(map(int, _ints(operation, "axes")))


def _changed(input_shape: Sequence[int], output_shape: Axes, operation: Operation) -> Touched:
    pairs = enumerate(zip(input_shape, output_shape, strict=True))
    return frozenset(axis for axis, (input_size, other) in pairs if told_apart(input_size) != told_apart(other))


def _padded(input_shape: Sequence[int], output_shape: Axes, operation: Operation) -> Touched:
    pads, rank = _ints(operation, "pads"), len(input_shape)
    return frozenset(axis for axis in range(rank) if not (_is(pads[axis], 0) and _is(pads[axis + rank], 0)))


def _repeated(input_shape: Sequence[int], output_shape: Axes, operation: Operation) -> Touched:
    return frozenset(axis for axis, times in enumerate(_ints(operation, "repeats")) if not _is(times, 1))


def _reduce(operation: Operation, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    return {**operation.attributes, "axes": tuple(sorted(set(place.values()))), "keepdims": True}


def _slice(operation: Operation, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    names = ("axes", "starts", "ends", "steps")
    rows = [row for row in zip(*(_ints(operation, name) for name in names), strict=True) if row[0] in place]
    axes, *columns = zip(*rows, strict=True)
    return {"axes": tuple(place[axis] for axis in axes), **dict(zip(names[1:], columns, strict=True))}


def _pad(operation: Operation, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    original_pads = _ints(operation, "pads")
    pads: list[int] = [0] * (2 * len(shape))
    for axis, where in place.items():
        pads[where], pads[where + len(shape)] = original_pads[axis], original_pads[axis + len(original_pads) // 2]
    return {**operation.attributes, "pads": tuple(pads)}


def _tile(operation: Operation, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    repeats = [1] * len(shape)
    for axis, where in place.items():
        repeats[where] = _ints(operation, "repeats")[axis]
    return {"repeats": tuple(repeats)}


def _expand(operation: Operation, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    return {"shape": shape}


_REPEATABLE = frozenset({"REDUCE_SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_MEAN"})
STEPWISE: Mapping[str, RankStep] = {
    **{
        type_: RankStep(
            touched=_named,
            attributes=_reduce,
            joins=True,
            repeats=type_ in _REPEATABLE,
            repeats_integers=type_ != "REDUCE_MEAN",
        )
        for type_ in REDUCING - {"ARG_MAX", "ARG_MIN"}
    },
    "EXPAND": RankStep(touched=_changed, attributes=_expand, joins=True),
    "PAD": RankStep(touched=_padded, attributes=_pad),
    "SLICE": RankStep(touched=_named, attributes=_slice),
    "TILE": RankStep(touched=_repeated, attributes=_tile),
}
"""By operation type."""
