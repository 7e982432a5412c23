"""Types of operands that somebody wrote by hand, checked for their kinds, and for what they say together."""

from __future__ import annotations

from dataclasses import replace
from operator import index as as_integer

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.quantized import check_quantization as check_quantized_type
from nnadapter.ir.tracing import Traced
from nnadapter.ir.wellformed import check_quantization_fields

DTYPES = tuple(map(str, DataType))
"""Names of the data types of models."""


def checked_type(name: str, type_: OperandType) -> OperandType:
    """Return the type of an operand that somebody may have written by hand, its fields of the right kinds.

    Raises:
        InvalidModelError: it is none, a field holds something else, or it contradicts itself.
    """
    if not isinstance(type_, OperandType):
        raise InvalidModelError(f"operand {name!r} is {type_!r}, expected an OperandType")
    if not is_one_of(DTYPES, type_.dtype):
        raise InvalidModelError(f"operand {name!r} is {type_.dtype!r}, expected one of {', '.join(DTYPES)}")
    try:
        dimensions = tuple(map(_dimension, type_.dimensions))
    except TypeError:
        raise InvalidModelError(
            f"operand {name!r} has dimensions {type_.dimensions!r}, expected whole numbers, every one known"
        ) from None
    if any(isinstance(size, int) and size < 0 for size in dimensions):
        raise InvalidModelError(f"operand {name!r} has dimensions {list(dimensions)}, expected none below 0")
    if not is_one_of(tuple(Layout), type_.layout):
        raise InvalidModelError(f"operand {name!r} has layout {type_.layout!r}, expected one of {', '.join(Layout)}")
    if type_.quantization is not None:
        check_quantization_fields(f"operand {name!r}", type_.quantization)
    converted_type = replace(type_, dtype=DataType(type_.dtype), dimensions=dimensions, layout=Layout(type_.layout))
    check_type(name, converted_type)
    return converted_type


def is_one_of(names: tuple[str, ...], candidate: object) -> bool:
    """Whether something is one of the names; what is no text, such as an array, may not even compare."""
    return isinstance(candidate, str) and candidate in names


def _dimension(size: int) -> int:
    if isinstance(size, bool):
        raise TypeError
    return size if isinstance(size, Traced) else as_integer(size)


def check_type(name: str, type_: OperandType) -> None:
    """Check the type of an operand of that name, whose fields are of the right kinds.

    Raises:
        InvalidModelError: layout and rank do not go together, or its quantization is not sound.
    """
    if type_.layout is Layout.NHWC and type_.rank != 4:
        raise InvalidModelError(f"operand {name!r} is {type_}, expected rank 4 for layout NHWC")
    if type_.quantization is not None:
        check_quantized_type(f"operand {name!r}", type_)
