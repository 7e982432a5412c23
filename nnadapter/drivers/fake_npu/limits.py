"""Limits of the device: data types, ranks, and modes of arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from nnadapter.ir.operand import DataType


class Arithmetic(NamedTuple):
    """Rounding of results."""

    half_precision: bool = False
    """Weights and the result of every instruction are rounded to half precision."""

    def __str__(self) -> str:
        """Return the option that selects it, in words."""
        return f"precision {'float16' if self.half_precision else 'float32'}"


USUAL = Arithmetic()
"""The default."""


Types = frozenset[DataType]

FLOATS: Types = frozenset({DataType.FLOAT32, DataType.FLOAT16})
NUMBERS: Types = FLOATS | {DataType.INT8, DataType.UINT8, DataType.INT32}
INDICES: Types = frozenset({DataType.INT32, DataType.INT64})
BOOLEANS: Types = frozenset({DataType.BOOL})
ALL_FLOATS: Types = FLOATS | {DataType.FLOAT64}
ALL_NUMBERS: Types = NUMBERS | {DataType.INT64, DataType.FLOAT64}
"""What works element by element, compares, reduces or multiplies matrices takes these; what is tuned, those above."""
HELD: Types = ALL_NUMBERS | BOOLEANS
"""Every data type that the device can hold."""

LARGEST_RANK = 6
NOT_EMPTY = "tensors with at least one element"
SMALL_RANK = f"rank at most {LARGEST_RANK}"
LIMITS = f"every operand: {NOT_EMPTY}, {SMALL_RANK}"
"""What every operation is refused for beside its row, in words."""
