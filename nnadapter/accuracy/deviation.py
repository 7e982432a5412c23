"""How far one value is from another: the one comparison, of a run with the CPU's and of a driver with what is right."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_NARROW_INTEGERS = frozenset(("int2", "uint2", "int4", "uint4"))
"""Integers that numpy does not know as such."""

_TEXTS = frozenset("OUS")
"""Kinds of arrays that hold strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What is allowed: `relative` of the expected number, and `absolute` beside it. All but these has to be equal."""

    relative: float
    absolute: float
    scaled: bool = False
    """`absolute` is for numbers of size 1: it is multiplied by the largest one of the array where that is more."""
    steps: int = 0
    """How far integers may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The largest difference in one value."""

    value: str
    tolerances: float = 0.0
    """Over what is allowed: beyond 1 it is too much; infinite where shapes or types differ, or one is not finite."""
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    """Largest difference over the expected number, where that is not zero."""
    beyond: int = 0
    """Number of elements that are off too much."""


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """Per element, how far two arrays are apart."""

    absolute: Array
    relative: Array
    tolerances: Array


def largest(deviations: Collection[Deviation]) -> Deviation:
    """The largest of some."""
    return max(deviations, key=lambda entry: entry.tolerances)


def deviation(value: str, got: Any, expected: Any, tolerance: Tolerance) -> Deviation:
    """Compare one value: an array, a sequence, a map, or an optional without contents, which is None.

    NaN agrees with NaN, and infinities with the same infinity.
    """
    if isinstance(got, Mapping) and isinstance(expected, Mapping) and got.keys() == expected.keys():
        got, expected = [got[key] for key in expected], list(expected.values())
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        members = zip(got, expected, strict=True)
        return _of_all(value, [deviation(value, *pair, tolerance) for pair in members])
    if got is None and expected is None:
        return Deviation(value=value)
    if any(operand is None or isinstance(operand, (list, Mapping)) for operand in (got, expected)):
        return _unlike(value, 1)
    actual, wanted = np.asarray(got), np.asarray(expected)
    texts = {actual.dtype.kind, wanted.dtype.kind} <= _TEXTS
    if actual.shape != wanted.shape or (actual.dtype != wanted.dtype and not texts):
        return _unlike(value, max(1, actual.size, wanted.size))
    apart = distances(actual, wanted, tolerance)
    return Deviation(
        value=value,
        tolerances=float(apart.tolerances.max(initial=0.0)),
        largest_absolute=float(apart.absolute.max(initial=0.0)),
        largest_relative=float(apart.relative.max(initial=0.0)),
        beyond=int(np.count_nonzero(apart.tolerances > 1)),
    )


def distances(got: Array, expected: Array, tolerance: Tolerance) -> Distances:
    """Compare two arrays of the same shape and type, element by element."""
    with np.errstate(all="ignore"):
        if _is_integer(expected.dtype):
            off, size = _between_integers(got, expected), np.abs(expected.astype(np.float64))
            allowed = np.full(off.shape, float(tolerance.steps))
        elif expected.dtype.kind in "bOUS":
            off = np.where(np.asarray(got != expected), 1.0 if expected.dtype.kind == "b" else np.inf, 0.0)
            size, allowed = np.ones(off.shape), np.zeros(off.shape)
        else:
            off, size = _between_numbers(got, expected)
            scale = max(1.0, float(size[np.isfinite(size)].max(initial=0.0))) if tolerance.scaled else 1.0
            allowed = tolerance.absolute * scale + tolerance.relative * size
        return Distances(
            absolute=off,
            relative=np.where(size > 0, _over(off, size), 0.0),
            tolerances=_over(off, allowed),
        )


def _is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type are integers."""
    return dtype.kind in "iu" or dtype.name in _NARROW_INTEGERS


def _between_integers(got: Array, expected: Array) -> Array:
    """Differences as integers: float64 holds no more than 53 bits of one."""
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    a, b = got.astype(wide), expected.astype(wide)
    larger, smaller = np.maximum(a, b).astype(np.uint64), np.minimum(a, b).astype(np.uint64)
    return np.asarray(larger - smaller).astype(np.float64)


def _between_numbers(got: Array, expected: Array) -> tuple[Array, Array]:
    """Differences, infinite where they are no numbers, and sizes of what is expected."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    off = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(off), np.inf, off), np.abs(b)


def _over(off: Array, what: Array) -> Array:
    """Quotients: 0 where nothing is off, infinite where they are no numbers."""
    quotient = np.where(off == 0, 0.0, np.where(np.isinf(off), np.inf, off / what))
    return np.where(np.isnan(quotient), np.inf, quotient)


def _unlike(value: str, elements: int) -> Deviation:
    inf = float("inf")
    return Deviation(value=value, tolerances=inf, largest_absolute=inf, largest_relative=inf, beyond=elements)


def _of_all(value: str, members: Collection[Deviation]) -> Deviation:
    return Deviation(
        value=value,
        tolerances=max((member.tolerances for member in members), default=0.0),
        largest_absolute=max((member.largest_absolute for member in members), default=0.0),
        largest_relative=max((member.largest_relative for member in members), default=0.0),
        beyond=sum(member.beyond for member in members),
    )
