"""What people give to the builder, checked for its kind before the schema looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index as as_integer
from typing import cast

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType, QuantizedType
from nnadapter.ir.tracing import Traced
from nnadapter.ir.verifying import check_type
from nnadapter.ir.wellformed import check_quantization

DTYPES = tuple(map(str, DataType))
"""Names of the data types of models."""


def is_number(index: object) -> bool:
    """Whether something can be the number of an operand: an int or numpy's; a bool is none."""
    return type(index) is int or (isinstance(index, (int, np.integer)) and not isinstance(index, bool))


def checked_type(name: str, type_: OperandType) -> OperandType:
    """Return the type of an operand that somebody may have written by hand, its fields of the right kinds.

    Raises:
        InvalidModelError: it is none, a field holds something else, or it contradicts itself.
    """
    if not isinstance(type_, OperandType):
        raise InvalidModelError(f"operand {name!r} is {type_!r}, expected an OperandType")
    if not _is_one_of(DTYPES, type_.dtype):
        raise InvalidModelError(f"operand {name!r} is {type_.dtype!r}, expected one of {', '.join(DTYPES)}")
    try:
        dimensions = tuple(map(_dimension, type_.dimensions))
    except TypeError:
        raise InvalidModelError(
            f"operand {name!r} has dimensions {type_.dimensions!r}, expected whole numbers, every one known"
        ) from None
    if any(isinstance(size, int) and size < 0 for size in dimensions):
        raise InvalidModelError(f"operand {name!r} has dimensions {list(dimensions)}, expected none below 0")
    if not _is_one_of(tuple(Layout), type_.layout):
        raise InvalidModelError(f"operand {name!r} has layout {type_.layout!r}, expected one of {', '.join(Layout)}")
    if type_.quantization is not None:
        check_quantization(f"operand {name!r}", type_.quantization)
    converted_type = replace(type_, dtype=DataType(type_.dtype), dimensions=dimensions, layout=Layout(type_.layout))
    check_type(name, converted_type)
    return converted_type


def _is_one_of(names: tuple[str, ...], candidate: object) -> bool:
    """Whether something is one of the names; what is no text, such as an array, may not even compare."""
    return isinstance(candidate, str) and candidate in names


def _dimension(size: int) -> int:
    if isinstance(size, bool):
        raise TypeError
    return size if isinstance(size, Traced) else as_integer(size)


def check_arguments(
    type_: object, inputs: object, attributes: object, *, outputs: object, origins: object, quantized: object
) -> None:
    """Check the kinds of what `ModelBuilder.add_operation` got; operands themselves are looked at later.

    Raises:
        InvalidModelError: one is of another kind.
    """
    if not isinstance(type_, str):
        raise InvalidModelError(f"an operation's type is {type_!r}, expected a str such as 'CONV_2D'")
    if type(inputs) is not tuple and (isinstance(inputs, str) or not isinstance(inputs, Iterable)):
        raise InvalidModelError(f"{type_}: inputs are {inputs!r}, expected a list of operands")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidModelError(f"{type_}: attributes are {attributes!r}, expected a dict of values by name")
    _check_list(type_, "outputs", outputs, str)
    _check_list(type_, "origins", origins, str)
    if type(quantized) is tuple and not quantized:  # nearly always
        return
    _check_list(type_, "quantized", quantized, (QuantizedType, type(None)))
    for position, result in enumerate(cast("Sequence[QuantizedType | None]", quantized)):
        if result is not None:
            _check_quantized(f"{type_}: output {position}", result)


def _check_quantized(which: str, result: QuantizedType) -> None:
    if not _is_one_of(DTYPES, result.dtype):
        raise InvalidModelError(f"{which} is quantized as {result.dtype!r}, expected a data type of integers")
    check_quantization(which, result.quantization)


def _check_list(type_: str, name: str, entries: object, kind: type | tuple[type, ...]) -> None:
    if type(entries) is tuple and (not entries or (len(entries) == 1 and type(entries[0]) is kind)):  # nearly always
        return
    if (
        isinstance(entries, str)
        or not isinstance(entries, Sequence)
        or not all(isinstance(each, kind) for each in entries)
    ):
        expected = "names" if kind is str else "QuantizedType, or None,"
        raise InvalidModelError(f"{type_}: {name} is {entries!r}, expected a list of {expected}")


def check_counts(type_: str, count: int, *, outputs: Sequence[str], quantized: Sequence[QuantizedType | None]) -> None:
    """Check that nothing is said of outputs that an operation of `count` outputs does not have.

    Raises:
        InvalidModelError: there are more names or quantized types than outputs.
    """
    for name, entries in (("outputs", outputs), ("quantized", quantized)):
        if len(entries) > count and any(entries[count:]):
            extra = list(entries[count:])
            raise InvalidModelError(
                f"{type_}: {name} has {len(entries)} entries, expected at most {count}; leave out {extra}"
            )
