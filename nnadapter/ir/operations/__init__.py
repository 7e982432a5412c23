"""Schema table: every operation of the adapter IR."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.errors import InvalidModelError, close_names
from nnadapter.ir.operations import (
    attention,
    convolution,
    custom,
    elementwise,
    indexing,
    linear_algebra,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resampling,
)
from nnadapter.ir.operations.external import brought_operations
from nnadapter.ir.operations.row import Row
from nnadapter.ir.schema import OperationSchema
from nnadapter.process.lazily import lazily

__all__ = ["BROUGHT", "FAMILIES", "MOVERS", "PRODUCTS", "REALS", "SCHEMAS", "TABULATED", "schema_of"]

_FAMILIES = (
    elementwise,
    convolution,
    pooling,
    linear_algebra,
    normalization,
    attention,
    recurrent,
    reduction,
    movement,
    indexing,
    resampling,
    quantization,
    custom,
)
FAMILIES: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {
        family.__name__.rpartition(".")[2]: tuple(quantization.quantizable(row) for row in family.ROWS)
        for family in _FAMILIES
    }
)
"""Rows of the schema table by family. A family is named after its module."""
SCHEMAS: Mapping[str, Row] = MappingProxyType({row.type: row for rows in FAMILIES.values() for row in rows})


def _types(word: str) -> frozenset[str]:
    return frozenset(row.type for row in SCHEMAS.values() if word in row.quantization.split())


MOVERS = _types("moves")
"""Operations that copy a per-tensor quantization from input to output. CONCAT of different quantizations computes on
real values.
"""
PRODUCTS = _types("product")
"""Operations that multiply quantized integers and accumulate them exactly."""
TABULATED = _types("table")
"""Unary functions, which a lookup table can compute for 8-bit operands."""
REALS = TABULATED | _types("real")
"""Operations that compute with the real values of 8-bit operands and results."""

BROUGHT = brought_operations(frozenset(SCHEMAS))
"""External operations by type, from installed packages."""


def schema_of(type_: str) -> OperationSchema:
    """Return the row of a built-in or external operation. Raises InvalidModelError."""
    row = SCHEMAS.get(type_) or BROUGHT.get(type_)
    if row is None:
        raise InvalidModelError(_unknown(type_))
    return row


def _unknown(type_: str) -> str:
    problem = BROUGHT.problem_of(type_)
    if problem:
        return f"unknown operation {type_!r}: {problem}"
    close = close_names(type_, (*SCHEMAS, *BROUGHT.all))
    return f"unknown operation {type_!r}; {close}{'' if close.endswith('?') else '; external ones need their package'}"


__getattr__ = lazily(
    __name__,
    {
        ".custom": "CUSTOM CustomCall",
        ".windows": "FUSE_CODES",
    },
)
