"""Attributes of operations and options of devices as NNAdapterAttribute, and back."""

from __future__ import annotations

import ctypes
from typing import Any

from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.native.codes import Kind
from nnadapter.drivers.native.structures import ATTRIBUTE_VALUE, Holder, read, read_pointers, read_text
from nnadapter.errors import DriverError
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.schema import Kind as AttributeKind

_KINDS = {kind: Kind[f"KIND_{kind.name}"] for kind in AttributeKind}
_MEMBERS = {
    Kind.KIND_BOOL: "boolean",
    Kind.KIND_INT: "integer",
    Kind.KIND_FLOAT: "real",
    Kind.KIND_STRING: "string",
    Kind.KIND_INTS: "integers",
    Kind.KIND_FLOATS: "reals",
    Kind.KIND_STRINGS: "strings",
}
_ELEMENTS = {Kind.KIND_INTS: "i64", Kind.KIND_FLOATS: "f64"}
_OPTION_KINDS: dict[type, Kind] = {
    bool: Kind.KIND_BOOL,
    int: Kind.KIND_INT,
    float: Kind.KIND_FLOAT,
    str: Kind.KIND_STRING,
    tuple: Kind.KIND_STRINGS,
}


def attribute(holder: Holder, name: str, kind: AttributeKind, value: AttributeValue) -> int:
    """The address of an attribute of an operation."""
    return _written(holder, name, _KINDS[kind], value)


def option(holder: Holder, name: str, value: OptionValue) -> int:
    """The address of an option of a device, whose value's type says its kind."""
    return _written(holder, name, _OPTION_KINDS[type(value)], value)


def read_option(address: int) -> tuple[str, OptionValue]:
    """Name and value of an option that a driver describes.

    Raises:
        DriverError: it is of a kind that options cannot have.
    """
    found = read("Attribute", address)
    name, value = read_text(found.name), found.value
    readers: dict[int, Any] = {
        Kind.KIND_BOOL: lambda: bool(value.boolean),
        Kind.KIND_INT: lambda: int(value.integer),
        Kind.KIND_FLOAT: lambda: float(value.real),
        Kind.KIND_STRING: lambda: read_text(value.string),
        Kind.KIND_STRINGS: lambda: read_texts(value.strings, found.count),
    }
    if found.kind not in readers:
        raise DriverError(f"option {name!r} has kind {found.kind}, expected a bool, int, float, string or strings")
    result: OptionValue = readers[found.kind]()
    return name, result


def read_texts(address: int | None, count: int) -> tuple[str, ...]:
    """The strings in an array of pointers to them."""
    pointers = read_pointers(address, count)
    return tuple(read_text(ctypes.c_char_p(pointer).value) for pointer in pointers)


def _written(holder: Holder, name: str, kind: Kind, value: Any) -> int:
    if kind is Kind.KIND_STRING:
        count, held = 1, value.encode()
    elif kind is Kind.KIND_STRINGS:
        count, held = len(value), holder.texts(value)
    elif kind in _ELEMENTS:
        count, held = len(value), holder.values(_ELEMENTS[kind], value)
    else:
        count, held = 1, value
    union = ATTRIBUTE_VALUE(**{_MEMBERS[kind]: held})
    return holder.make("Attribute", name=name.encode(), kind=int(kind), count=count, value=holder.keep(union))
