"""Attributes of operations and options of devices as NNAdapterAttribute, and back."""

from __future__ import annotations

import ctypes
from typing import Any

from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.native.codes import AttributeCode
from nnadapter.drivers.native.sizes import NumberedSizes, known
from nnadapter.drivers.native.structures import ATTRIBUTE_VALUE, Holder, read, read_pointers, read_text
from nnadapter.errors import DriverError
from nnadapter.ir.schema import AttributeKind, AttributeValue

_KINDS = {kind: AttributeCode[f"KIND_{kind.name}"] for kind in AttributeKind}
_MEMBERS = {
    AttributeCode.KIND_BOOL: "boolean",
    AttributeCode.KIND_INT: "integer",
    AttributeCode.KIND_FLOAT: "real",
    AttributeCode.KIND_STRING: "string",
    AttributeCode.KIND_INTS: "integers",
    AttributeCode.KIND_FLOATS: "reals",
    AttributeCode.KIND_STRINGS: "strings",
}
_ELEMENTS = {AttributeCode.KIND_INTS: "i64", AttributeCode.KIND_FLOATS: "f64"}
_OPTION_KINDS: dict[type, AttributeCode] = {
    bool: AttributeCode.KIND_BOOL,
    int: AttributeCode.KIND_INT,
    float: AttributeCode.KIND_FLOAT,
    str: AttributeCode.KIND_STRING,
    tuple: AttributeCode.KIND_STRINGS,
}


def attribute(
    holder: Holder, name: str, kind: AttributeKind, value: AttributeValue, sizes: NumberedSizes | None = None
) -> int:
    """The address of an attribute of an operation, with its places among the sizes of an open model."""
    if sizes is None:
        return _written(holder, name, _KINDS[kind], value)
    numbers = value if isinstance(value, tuple) else (value,)
    plain = known(numbers)
    return _written(
        holder,
        name,
        _KINDS[kind],
        tuple(plain) if isinstance(value, tuple) else plain[0],
        sizes.address_of_places(holder, numbers),
    )


def option(holder: Holder, name: str, value: OptionValue) -> int:
    """The address of an option of a device, whose value's type says its kind."""
    return _written(holder, name, _OPTION_KINDS[type(value)], value)


def read_option(address: int) -> tuple[str, OptionValue]:
    """Name and value of an option that a driver describes.

    Raises:
        DriverError: it is of a kind that options cannot have.
    """
    option_attribute = read("Attribute", address)
    name, value = read_text(option_attribute.name), option_attribute.value
    readers: dict[int, Any] = {
        AttributeCode.KIND_BOOL: lambda: bool(value.boolean),
        AttributeCode.KIND_INT: lambda: int(value.integer),
        AttributeCode.KIND_FLOAT: lambda: float(value.real),
        AttributeCode.KIND_STRING: lambda: read_text(value.string),
        AttributeCode.KIND_STRINGS: lambda: read_texts(value.strings, option_attribute.count),
    }
    if option_attribute.kind not in readers:
        raise DriverError(
            f"option {name!r} has kind {option_attribute.kind}, expected a bool, int, float, string or strings"
        )
    result: OptionValue = readers[option_attribute.kind]()
    return name, result


def read_texts(address: int | None, count: int) -> tuple[str, ...]:
    """The strings in an array of pointers to them."""
    pointers = read_pointers(address, count)
    return tuple(read_text(ctypes.c_char_p(pointer).value) for pointer in pointers)


def _written(holder: Holder, name: str, kind: AttributeCode, value: Any, places: int | None = None) -> int:
    if kind is AttributeCode.KIND_STRING:
        count, encoded_value = 1, value.encode()
    elif kind is AttributeCode.KIND_STRINGS:
        count, encoded_value = len(value), holder.texts(value)
    elif kind in _ELEMENTS:
        count, encoded_value = len(value), holder.values(_ELEMENTS[kind], value)
    else:
        count, encoded_value = 1, value
    union = ATTRIBUTE_VALUE(**{_MEMBERS[kind]: encoded_value})
    return holder.make(
        "Attribute", name=name.encode(), kind=int(kind), count=count, value=holder.keep(union), sizes=places
    )
