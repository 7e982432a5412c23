"""The schema table: every operation of the adapter IR."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.errors import InvalidModelError, close_names
from nnadapter.ir.operations import (
    accumulation,
    attention,
    bits,
    convolution,
    custom,
    elementwise,
    functions,
    generation,
    indexing,
    linear_algebra,
    losses,
    matrix,
    movement,
    normalization,
    norms,
    pooling,
    quantization,
    recurrent,
    reduction,
    resizing,
    sampling,
    scattering,
    spectral,
    volumes,
    window_pooling,
)
from nnadapter.ir.operations.external import brought_operations
from nnadapter.ir.schema import OperationSchema

__all__ = ["BROUGHT", "SCHEMAS", "schema_of"]

_FAMILIES = (
    elementwise.ROWS,
    convolution.ROWS,
    pooling.ROWS,
    matrix.ROWS,
    normalization.ROWS,
    reduction.ROWS,
    movement.ROWS,
    indexing.ROWS,
    resizing.ROWS,
    functions.ROWS,
    bits.ROWS,
    accumulation.ROWS,
    linear_algebra.ROWS,
    generation.ROWS,
    sampling.ROWS,
    scattering.ROWS,
    volumes.ROWS,
    window_pooling.ROWS,
    recurrent.ROWS,
    attention.ROWS,
    norms.ROWS,
    losses.ROWS,
    spectral.ROWS,
    quantization.ROWS,
    custom.ROWS,
)

SCHEMAS: Mapping[str, OperationSchema] = MappingProxyType(
    {row.type: quantization.quantizable(row) for family in _FAMILIES for row in family}
)
"""The rows by operation type."""

BROUGHT = brought_operations(frozenset(SCHEMAS))
"""Operations from outside, which are looked for where the table has none."""


def schema_of(type_: str) -> OperationSchema:
    """Return the row of an operation type, from the table or from outside.

    Raises:
        InvalidModelError: there is no such operation.
    """
    row = SCHEMAS.get(type_) or BROUGHT.get(type_)
    if row is None:
        raise InvalidModelError(_unknown(type_))
    return row


def _unknown(type_: str) -> str:
    problem = BROUGHT.problem_of(type_)
    if problem:
        return f"unknown operation {type_!r}: {problem}"
    close = close_names(type_, (*SCHEMAS, *BROUGHT.all))
    return (
        f"unknown operation {type_!r}; {close}{'' if close.endswith('?') else '; one from outside needs its package'}"
    )
