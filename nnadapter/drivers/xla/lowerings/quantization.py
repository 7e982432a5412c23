"""Integers that stand for reals: the way there and back."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, LAYOUTS
from nnadapter.drivers.xla.lowerings.integers import QUANTIZED, to_integers, to_reals
from nnadapter.ir.named_operation import NamedOperation


@lowers("QUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_quantize(operation: NamedOperation) -> Computes:
    """Reals as integers."""
    type_ = operation.output.type
    return lambda x: to_integers(x, type_)


@lowers("DEQUANTIZE", types=(*ALL_FLOATS, *QUANTIZED), quantized=True, layouts=LAYOUTS)
def lower_dequantize(operation: NamedOperation) -> Computes:
    """Integers as the reals that they stand for."""
    type_, made = operation.inputs[0].type, operation.output.type.dtype.array_type  # type: ignore[union-attr]
    return lambda x: to_reals(x, type_).astype(made)


@lowers("STORAGE_CAST", types=QUANTIZED, quantized=True, layouts=LAYOUTS)
def lower_storage_cast(operation: NamedOperation) -> Computes:
    """The same integers, seen otherwise."""
    made: Any = operation.output.type.dtype.array_type
    return lambda x: x.astype(made)
