"""Which operations stand together, and what is said of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations import FAMILIES as ROWS
from nnadapter.ir.reference import (
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
from nnadapter.ir.reference.meaning import OperationDoc
from nnadapter.ir.schema import OperationSchema

_MODULES = (
    elementwise,
    functions,
    bits,
    convolution,
    volumes,
    pooling,
    window_pooling,
    matrix,
    linear_algebra,
    normalization,
    norms,
    attention,
    recurrent,
    reduction,
    accumulation,
    movement,
    indexing,
    scattering,
    resizing,
    sampling,
    generation,
    quantization,
    spectral,
    losses,
    custom,
)

_MEANINGS = {type_: meaning for module in _MODULES for type_, meaning in module.MEANINGS.items()}
FAMILIES: Mapping[str, Mapping[str, OperationDoc]] = MappingProxyType(
    {family: {row.type: _MEANINGS[row.type] for row in rows} for family, rows in ROWS.items()}
)
"""By family, named as the module of its rows."""
_FAMILY_OF = {type_: family for family, meanings in FAMILIES.items() for type_ in meanings}


def family_of(type_: str) -> str:
    """The family of an operation; empty for one from outside."""
    return _FAMILY_OF.get(type_, "")


def meaning_of(schema: OperationSchema) -> OperationDoc | None:
    """What is said of an operation: by its own row, or by the family's table; None if nobody says anything.

    Raises:
        InvalidModelError: a row from outside holds something else.
    """
    meaning = schema.doc
    if meaning is not None and not isinstance(meaning, OperationDoc):
        raise InvalidModelError(
            f"{schema.type}: doc is {type(meaning).__name__}, expected an nnadapter.ir.OperationDoc"
        )
    if meaning is not None:
        return meaning
    return FAMILIES[_FAMILY_OF[schema.type]][schema.type] if schema.type in _FAMILY_OF else None
