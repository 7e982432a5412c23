"""Tolerances of results, by data type and precision: one table for sessions and the conformance kit.

How far results may be off, by data type: the one table, for sessions and for the conformance kit.

`noise` is for models whose values the kit itself computes: every value is put off by so much of itself, and what comes
out shows how far a device may be off (`nnadapter.testing.random_models.oracle`). `relative` and `absolute` are for
results that are simply compared: relative to the value, and beside it, relative to the largest value of the result
where that is above 1: a 0 that is a sum of large numbers is as far off as these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from nnadapter.accuracy.deviation import Tolerance
from nnadapter.drivers.capability import OptionValues
from nnadapter.ir.operand import DataType
from partition.graph import Graph


@dataclass(frozen=True, slots=True)
class Band:
    """One row."""

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
"""By data type. `noise` is eight units in the last place, for the narrow types two to four of those that are rounded
to."""
_NAMES = frozenset(dtype.value for dtype in DataType)


def band_of(dtype: DataType, precision: DataType) -> Band:
    """The band of a floating-point type on a device that computes in `precision`."""
    dtype_band, coarse = BANDS[dtype], BANDS[precision]
    return dtype_band if dtype_band.noise >= coarse.noise else coarse


def tolerance_of(dtype: str, precision: DataType, steps: int) -> Tolerance:
    """What is allowed of a value.

    Args:
        dtype: of the value, by its name; floating-point types that the adapter IR lacks are as coarse as its coarsest.
        precision: in what the device computes.
        steps: how far integers may be off.
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
    """In what a device computes float32, by its options: `precision` names a data type, or `float16` says yes."""
    name = "float16" if options.get("float16") is True else options.get("precision")
    return DataType(name) if isinstance(name, str) and name in _NAMES and "float" in name else DataType.FLOAT32


_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear")
"""What the names of ops begin with that round to quantized values."""
STEP = 1
"""How far a quantized value may be off: what lies between two steps is rounded to either."""


class ValueTolerances(Protocol):
    """What is allowed of every value of a model."""

    def of(self, name: str) -> Tolerance:
        """What is allowed of one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrecision:
    """What the precision of a device allows, by `nnadapter.accuracy.tolerances`."""

    precision: DataType
    dtypes: Mapping[str, str]
    quantized: frozenset[str]
    """Values that may be off by a step."""

    def of(self, name: str) -> Tolerance:
        return tolerance_of(self.dtypes.get(name, ""), self.precision, STEP if name in self.quantized else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """What is allowed of every value of a model.

    Inside of a model numbers have any size, and what is left of large ones that cancel out is no error. So there
    `absolute` is scaled, see `Tolerance`.
    """

    relative: float
    absolute: float
    outputs: frozenset[str]
    quantized: frozenset[str]
    """Values that may be off by a step."""

    def of(self, name: str) -> Tolerance:
        """What is allowed of one value."""
        return Tolerance(
            relative=self.relative,
            absolute=self.absolute,
            scaled=name not in self.outputs,
            steps=STEP if name in self.quantized else 0,
        )


def shapes_of(feed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of what is fed, but for sequences and optionals without contents."""
    return {name: np.shape(value) for name, value in feed.items() if value is not None and not isinstance(value, list)}


def quantized_values(graph: Graph) -> frozenset[str]:
    """What ops round to quantized integers, and what others make of these in the same type."""
    names: set[str] = set()
    for node in graph.nodes:
        if node.op_type.startswith(_ROUNDING):
            names.update(node.outputs[:1])
        else:
            types = {graph.value(name).dtype for name in node.inputs if name in names}
            names.update(name for name in node.outputs if name and graph.value(name).dtype in types - {None})
    return frozenset(names)
