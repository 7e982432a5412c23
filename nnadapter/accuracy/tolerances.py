"""Deviation between values, and tolerances by data type and precision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from nnadapter.drivers.capability import OptionValues
from nnadapter.ir.operand import Array, DataType
from nnadapter.records import dataclass
from partition.graph import Graph

_NARROW_INTEGERS = frozenset(("int2", "uint2", "int4", "uint4"))

_TEXTS = frozenset("OUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Allowed difference: `relative` times the expected number, plus `absolute`; for integers, only `steps`."""

    relative: float
    absolute: float
    scaled: bool = False
    """Multiply `absolute` by the array's largest number if that exceeds 1."""
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Largest difference between two versions of a value."""

    value: str
    tolerances: float = 0.0
    """Largest difference as a multiple of the tolerance; infinite if shapes, types or NaNs differ, or one side is
    infinite.
    """
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    """Largest quotient of a difference and its nonzero expected number."""
    beyond: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Elementwise differences of two arrays."""

    absolute: Array
    relative: Array
    tolerances: Array


def largest(deviations: Collection[Deviation]) -> Deviation:
    """Return the deviation that is most beyond its tolerance."""
    return max(deviations, key=lambda entry: entry.tolerances)


def deviation(value: str, got: Any, expected: Any, tolerance: Tolerance) -> Deviation:
    """Compare two arrays, sequences or maps; None is an empty optional. `value` names the value. NaN equals NaN."""
    if isinstance(got, Mapping) and isinstance(expected, Mapping) and got.keys() == expected.keys():
        got, expected = [got[key] for key in expected], list(expected.values())
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        members = zip(got, expected, strict=True)
        return _of_all(value, [deviation(value, *pair, tolerance) for pair in members])
    if got is None and expected is None:
        return Deviation(value=value)
    if any(operand is None or isinstance(operand, (list, Mapping)) for operand in (got, expected)):
        return _unlike(value, 1)
    actual, reference = np.asarray(got), np.asarray(expected)
    texts = {actual.dtype.kind, reference.dtype.kind} <= _TEXTS
    if actual.shape != reference.shape or (actual.dtype != reference.dtype and not texts):
        return _unlike(value, max(1, actual.size, reference.size))
    differences = element_differences(actual, reference, tolerance)
    return Deviation(
        value=value,
        tolerances=float(differences.tolerances.max(initial=0.0)),
        largest_absolute=float(differences.absolute.max(initial=0.0)),
        largest_relative=float(differences.relative.max(initial=0.0)),
        beyond=int(np.count_nonzero(differences.tolerances > 1)),
    )


def element_differences(got: Array, expected: Array, tolerance: Tolerance) -> Differences:
    """Compare two arrays of the same shape and type elementwise."""
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
        return Differences(
            absolute=off, relative=np.where(size > 0, _over(off, size), 0.0), tolerances=_over(off, allowed)
        )


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name in _NARROW_INTEGERS


def _between_integers(got: Array, expected: Array) -> Array:
    wide = np.uint64 if expected.dtype == np.uint64 else np.int64
    a, b = got.astype(wide), expected.astype(wide)
    larger, smaller = np.maximum(a, b).astype(np.uint64), np.minimum(a, b).astype(np.uint64)
    return np.asarray(larger - smaller).astype(np.float64)


def _between_numbers(got: Array, expected: Array) -> tuple[Array, Array]:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    off = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(off), np.inf, off), np.abs(b)


def _over(off: Array, divisor: Array) -> Array:
    quotient = np.where(off == 0, 0.0, np.where(np.isinf(off), np.inf, off / divisor))
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


@dataclass(frozen=True, slots=True)
class Band:
    """Rounding error of a data type, and the tolerances for it."""

    noise: float
    relative: float
    absolute: float


BANDS: Mapping[DataType, Band] = MappingProxyType(
    {
        DataType.FLOAT64: Band(2.0**-48, 1e-7, 1e-7),
        DataType.FLOAT32: Band(2.0**-20, 1e-3, 1e-5),
        DataType.FLOAT16: Band(2.0**-9, 1e-2, 4e-3),
        DataType.BFLOAT16: Band(2.0**-6, 5e-2, 2e-2),
        DataType.FLOAT8E4M3FN: Band(2.0**-2, 0.25, 0.1),
        DataType.FLOAT8E5M2: Band(2.0**-1, 0.5, 0.2),
    }
)
"""Tolerances by data type. `noise` is 2 to 16 units in the last place."""
_NAMES = frozenset(dtype.value for dtype in DataType)


def band_of(dtype: DataType, precision: DataType) -> Band:
    """Return the tolerances of `dtype` or of `precision`, whichever are larger."""
    dtype_band, coarse = BANDS[dtype], BANDS[precision]
    return dtype_band if dtype_band.noise >= coarse.noise else coarse


def tolerance_of(dtype: str, precision: DataType, steps: int) -> Tolerance:
    """Return the tolerance of a value of type `dtype`, computed in `precision`; integers may differ by `steps`.

    Floating-point types that the adapter IR lacks have the largest tolerance.
    """
    if dtype.startswith("complex"):
        float_type = DataType.FLOAT32
    elif "float" in dtype:
        float_type = DataType(dtype) if dtype in _NAMES else DataType.FLOAT8E5M2
    else:
        return Tolerance(relative=0, absolute=0, steps=steps)
    band = band_of(float_type, precision)
    return Tolerance(relative=band.relative, absolute=band.absolute, scaled=True, steps=steps)


def precision_of(options: OptionValues) -> DataType:
    """Return the data type in which a device with these options computes float32 operations."""
    name = "float16" if options.get("float16") is True else options.get("precision")
    return DataType(name) if isinstance(name, str) and name in _NAMES and "float" in name else DataType.FLOAT32


_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear")
STEP = 1
"""Allowed difference between quantized integers."""


class ValueTolerances(Protocol):
    """Tolerances of all values of a model."""

    def of(self, name: str) -> Tolerance:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrecision:
    """Tolerances by a device's precision."""

    precision: DataType
    dtypes: Mapping[str, str]
    quantized: frozenset[str]
    """Values that may differ by one quantization step."""

    def of(self, name: str) -> Tolerance:
        return tolerance_of(self.dtypes.get(name, ""), self.precision, STEP if name in self.quantized else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Tolerances that the user chose.

    Intermediate values have `scaled` tolerances, because sums of large numbers may cancel.
    """

    relative: float
    absolute: float
    outputs: frozenset[str]
    quantized: frozenset[str]

    def of(self, name: str) -> Tolerance:
        return Tolerance(
            relative=self.relative,
            absolute=self.absolute,
            scaled=name not in self.outputs,
            steps=STEP if name in self.quantized else 0,
        )


def shapes_of(feed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return a feed's shapes, without sequences and empty optionals."""
    return {name: np.shape(value) for name, value in feed.items() if value is not None and not isinstance(value, list)}


def quantized_values(graph: Graph) -> frozenset[str]:
    """Return the results of quantizing ops, and values computed from these results in the same data type."""
    names: set[str] = set()
    for node in graph.nodes:
        if node.op_type.startswith(_ROUNDING):
            names.update(node.outputs[:1])
        else:
            types = {graph.value(name).dtype for name in node.inputs if name in names}
            names.update(name for name in node.outputs if name and graph.value(name).dtype in types - {None})
    return frozenset(names)
