"""What people give to the builder, checked for its kind before the schema looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import QuantizedType
from nnadapter.ir.operand_types import DTYPES, is_one_of
from nnadapter.ir.wellformed import check_quantization_fields


def is_number(index: object) -> bool:
    """Whether something can be the number of an operand: an int or numpy's; a bool is none."""
    return type(index) is int or (isinstance(index, (int, np.integer)) and not isinstance(index, bool))


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
    if not is_one_of(DTYPES, result.dtype):
        raise InvalidModelError(f"{which} is quantized as {result.dtype!r}, expected a data type of integers")
    check_quantization_fields(which, result.quantization)


def _check_list(type_: str, name: str, entries: object, kind: type | tuple[type, ...]) -> None:
    if type(entries) is tuple and (not entries or (len(entries) == 1 and type(entries[0]) is kind)):  # nearly always
        return
    if (
        isinstance(entries, str)
        or not isinstance(entries, Sequence)
        or not all(isinstance(entry, kind) for entry in entries)
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
