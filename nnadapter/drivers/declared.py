"""What a driver says of its devices, checked before anybody relies on it: plug-ins may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from nnadapter.drivers.capability import Capability, DeviceInfo

_HINTS: Mapping[type, Mapping[str, Any]] = {kind: get_type_hints(kind) for kind in (Capability, DeviceInfo)}
"""The declared types: a new field is checked as soon as it is declared."""


def check_capability(capability: object) -> Capability:
    """Return a capability whose fields are what they are declared to be.

    Raises:
        TypeError: it is none, or a field is not.
    """
    if not isinstance(capability, Capability):
        raise TypeError(f"its capability is {capability!r}, expected a nnadapter.drivers.Capability")
    _check_fields("capability", capability)
    return capability


def check_info(row: object, driver: str) -> DeviceInfo:
    """Return a row of `Driver.devices` whose fields are what they are declared to be, of a device of `driver`.

    Raises:
        TypeError: it is none, a field is not, or the name is not that of a device of this driver.
    """
    if not isinstance(row, DeviceInfo):
        raise TypeError(f"its devices hold {row!r}, expected nnadapter.drivers.DeviceInfo")
    _check_fields("row of devices", row)
    if row.name != driver and not (row.name.startswith(f"{driver}:") and row.name.isprintable()):
        raise TypeError(f"its devices name {row.name!r}, expected {driver!r} or '{driver}:ID'")
    return row


def _check_fields(subject: str, declaration: Capability | DeviceInfo) -> None:
    for name, hint in _HINTS[type(declaration)].items():
        value: Any = getattr(declaration, name)
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        tuples = [kind for kind in kinds if get_origin(kind) is tuple]
        if isinstance(value, tuple(kind for kind in kinds if kind not in tuples)):
            continue
        if not tuples or not isinstance(value, tuple):
            raise TypeError(f"{name} of its {subject} is {value!r}, expected {'tuple' if tuples else _named(hint)}")
        element = get_args(tuples[0])[0]
        for item in value:
            if not isinstance(item, element):
                raise TypeError(f"{name} of its {subject} hold {item!r}, expected nnadapter.drivers.{_named(element)}")


def _named(hint: type | UnionType) -> str:
    return getattr(hint, "__name__", str(hint))
