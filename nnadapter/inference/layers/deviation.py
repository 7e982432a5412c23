"""How far a device's value is from the CPU's, in tolerances."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What is allowed: `relative` of the CPU's value, and `absolute` beside it.

    Inside of a model numbers have any size, and what is left of large ones that cancel out is no error. So there
    `absolute` is meant for values of size 1, and is multiplied by the largest one of the tensor where that is more.
    """

    relative: float
    absolute: float
    outputs: frozenset[str]
    """Values of the model that are held to the letter of both."""
    rounded: frozenset[str]
    """Quantized values, which may be one step off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The largest difference in one value."""

    value: str
    tolerances: float
    """Over what is allowed: beyond 1 it is too much; infinite where shapes or types differ, or one is not finite."""
    largest_absolute: float

    @property
    def beyond(self) -> bool:
        """It is too much."""
        return self.tolerances > 1


def largest(deviations: Collection[Deviation]) -> Deviation:
    """The largest of some."""
    return max(deviations, key=lambda each: each.tolerances)


def deviation(name: str, got: Any, expected: Any, tolerance: Tolerance) -> Deviation:
    """Compare one value. NaN agrees with NaN, and infinities with the same infinity."""
    if isinstance(expected, list):
        same_length = isinstance(got, list) and len(got) == len(expected)
        inner = [deviation(name, a, b, tolerance) for a, b in zip(got, expected, strict=True)] if same_length else []
        empty = Deviation(value=name, tolerances=0.0 if same_length else np.inf, largest_absolute=0.0)
        return largest([empty, *inner])
    actual, wanted = np.asarray(got), np.asarray(expected)
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return Deviation(value=name, tolerances=np.inf, largest_absolute=np.inf)
    if actual.dtype.kind in "OUS":
        off = 0.0 if np.array_equal(actual, wanted) else np.inf
        return Deviation(value=name, tolerances=off, largest_absolute=off)
    return _numeric(name, actual, wanted, tolerance)


def _numeric(name: str, actual: Array, wanted: Array, tolerance: Tolerance) -> Deviation:
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    a, b = actual.astype(wide), wanted.astype(wide)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        off = np.where(same, 0.0, np.abs(a - b))
        off = np.where(np.isnan(off), np.inf, off)
        size = np.abs(b)
        scale = 1.0 if name in tolerance.outputs else max(1.0, float(size[np.isfinite(size)].max(initial=0.0)))
        allowed = np.maximum(tolerance.absolute * scale + tolerance.relative * size, float(name in tolerance.rounded))
        ratio = np.where(off == 0, 0.0, np.where(np.isinf(off), np.inf, off / allowed))
    return Deviation(
        value=name,
        tolerances=float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max(initial=0.0)),
        largest_absolute=float(off.max(initial=0.0)),
    )
