"""How far the values of a model may be off: one rule for outputs, for what is inside, and for pins that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nnadapter.accuracy.bands import tolerance_of
from nnadapter.ir.operand import DataType
from nnadapter.running.deviation import Tolerance
from partition.graph import Graph

_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear")
"""What the names of ops begin with that round to quantized values."""
STEP = 1
"""How far a quantized value may be off: what lies between two steps is rounded to either."""


class Allowed(Protocol):
    """What is allowed of every value of a model."""

    def of(self, name: str) -> Tolerance:
        """What is allowed of one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrecision:
    """What the precision of a device allows, by `nnadapter.accuracy.bands`."""

    precision: DataType
    dtypes: Mapping[str, str]
    quantized: frozenset[str]
    """Values that may be off by a step."""

    def of(self, name: str) -> Tolerance:
        """See `Allowed.of`."""
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
