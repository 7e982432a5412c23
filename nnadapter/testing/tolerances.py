"""How far results may be off, by data type: the one table that every comparison of the kit reads.

`noise` is for models whose values the kit itself computes: every value is put off by so much of itself, and what comes
out shows how far a device may be off (`random_models.oracle`). `relative` and `absolute` are for results that are
simply compared, as those of onnx's operator tests: relative to the value, and beside it, relative to the largest value
of the result where that is above 1: a 0 that is a sum of large numbers is as far off as these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from nnadapter.ir.operand import Array, DataType
from nnadapter.running.deviation import Tolerance, distances


@dataclass(frozen=True, slots=True)
class Band:
    """One row."""

    noise: float
    relative: float
    absolute: float


class Precision(StrEnum):
    """In what a device computes float32: a device that says float16 is held to what float16 can do."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


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
"""By data type. `noise` is eight units in the last place, for the narrow types two to four of those that are rounded
to. Integers and booleans are exact; 8-bit results of quantized operators may be one step off (`STEP`)."""
STEP = 1
"""Steps that an 8-bit integer may be off in onnx's operator tests: rounding of a half is not laid down for devices."""
_EXACT = Band(0, 0, 0)
_NAMES = frozenset(dtype.value for dtype in DataType)
_EIGHT_BITS = frozenset((DataType.INT8, DataType.UINT8))


def band_of(dtype: DataType, precision: Precision) -> Band:
    """The band of a floating-point type on a device that computes in `precision`."""
    own, coarse = BANDS[dtype], BANDS[DataType(precision.value)]
    return own if own.noise >= coarse.noise else coarse


def furthest(got: Array, expected: Array, precision: Precision, *, steps: int = 0) -> str:
    """Say where `got` is beyond the band around `expected`, of the same type and shape; empty if nowhere.

    Args:
        got: what a device computed.
        expected: what is right.
        precision: in what the device computes.
        steps: how far 8-bit integers may be off.
    """
    wrong = _wrong(got, expected, precision, steps)
    if not wrong.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    count = f"{int(wrong.sum())} of {wrong.size} elements are off"
    return f"{list(where)}: got {got[where]}, expected {expected[where]}; {count}"


def _wrong(got: Array, expected: Array, precision: Precision, steps: int) -> Array:
    name = expected.dtype.name
    dtype = DataType(name) if name in _NAMES else DataType.FLOAT8E5M2  # ONNX's further narrow types are as coarse
    band = band_of(dtype, precision) if dtype.is_floating and "float" in name else _EXACT
    allowed = steps if dtype in _EIGHT_BITS else 0
    tolerance = Tolerance(relative=band.relative, absolute=band.absolute, scaled=True, steps=allowed)
    return distances(got, expected, tolerance).tolerances > 1
