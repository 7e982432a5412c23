"""ctypes classes made of the table of the C interface, and what is done with them: make one, read one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nnadapter.drivers.native.layout import FUNCTIONS, STRUCTURES, UNIONS, VERSION, Members

_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "f64": ctypes.c_double,
    "text": ctypes.c_char_p,
    "pointer": ctypes.c_void_p,
    "status": ctypes.c_int32,
    "nothing": None,
}


def _declare(base: type, name: str, members: Members) -> Any:
    return type(f"NNAdapter{name}", (base,), {"_fields_": [(member, _TYPES[type_]) for member, type_ in members]})


for _name, _union_members in UNIONS.items():
    _TYPES[_name] = _declare(ctypes.Union, _name, _union_members)

CLASSES: Mapping[str, Any] = MappingProxyType(
    {name: _declare(ctypes.Structure, name, members) for name, members in STRUCTURES.items()}
)
"""The class of every structure, by its name in the table."""
SIGNATURES: Mapping[str, Any] = MappingProxyType(
    {name: ctypes.CFUNCTYPE(*(_TYPES[type_] for type_ in types)) for name, types in FUNCTIONS.items()}
)
"""The type of a pointer to every function. Calls through it let other Python threads run."""
ATTRIBUTE_VALUE: Any = _TYPES["AttributeValue"]
"""The class of the union of an attribute."""
CODED_VERSION = VERSION[0] << 16 | VERSION[1]
"""NNADAPTER_VERSION."""


def make(name: str, /, **members: Any) -> Any:
    """Return a new structure with its size and version set, and those members; all others are 0."""
    structure = CLASSES[name](**members)
    structure.size, structure.version = ctypes.sizeof(structure), CODED_VERSION
    return structure


class StructPool:
    """Structures of one kind in a row, as they were made, for drivers to write into again and again."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the name of the structure, and the members of each."""
        contents = [bytes(make(name, **members)) for members in rows]
        self._as_new = b"".join(contents)
        self.bytes = bytearray(self._as_new)
        """What is there now."""
        kind = CLASSES[name]
        self.structures = [kind.from_buffer(self.bytes, index * ctypes.sizeof(kind)) for index in range(len(contents))]
        """Each of them."""
        self.addresses = list(map(ctypes.addressof, self.structures))
        """Where each is."""

    def clear(self) -> None:
        """Make them what they were."""
        self.bytes[:] = self._as_new


def read(name: str, address: int) -> Any:
    """Return a copy of the structure at an address as far as its own `size` says it goes; what lies beyond is 0."""
    kind = CLASSES[name]
    structure = kind()
    declared_size = ctypes.c_uint32.from_address(address).value
    ctypes.memmove(ctypes.addressof(structure), address, min(declared_size, ctypes.sizeof(kind)))
    return structure


def read_pointers(address: int | None, count: int) -> tuple[int | None, ...]:
    """The pointers in an array of them; none where the array is null."""
    return tuple((ctypes.c_void_p * count).from_address(address)) if address and count else ()


def read_text(value: bytes | None) -> str:
    """A string of a driver: what is no UTF-8 is shown as replaced; empty if it is null."""
    return (value or b"").decode("utf-8", "replace")


class Holder:
    """Makes what structures point to, and keeps it alive as long as it lives itself."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        """Everything, in the order in which it was made."""

    def keep(self, thing: Any) -> Any:
        """Return `thing`, kept."""
        self.kept.append(thing)
        return thing

    def make(self, name: str, /, **members: Any) -> int:
        """The address of a new structure; see `make`."""
        return ctypes.addressof(self.keep(make(name, **members)))

    def values(self, type_: str, values: Iterable[Any]) -> int | None:
        """The address of an array of values of a type of the table; None if there are none."""
        elements: Sequence[Any] = tuple(values)
        return ctypes.addressof(self.keep((_TYPES[type_] * len(elements))(*elements))) if elements else None

    def pointers(self, addresses: Iterable[int | None]) -> int | None:
        """The address of an array of pointers."""
        return self.values("pointer", addresses)

    def texts(self, texts: Iterable[str]) -> int | None:
        """The address of an array of pointers to strings."""
        return self.values("text", (text.encode() for text in texts))
