"""What a driver says of its devices, checked before anybody relies on it: plug-ins may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from nnadapter.drivers.capability import Capability, DeviceInfo

_HINTS: Mapping[type, Mapping[str, Any]] = {kind: get_type_hints(kind) for kind in (Capability, DeviceInfo)}
"""The declared types: a new field is checked as soon as it is declared."""


def check_capability(found: object) -> Capability:
    """Return a capability whose fields are what they are declared to be.

    Raises:
        TypeError: it is none, or a field is not.
    """
    if not isinstance(found, Capability):
        raise TypeError(f"its capability is {found!r}, expected a nnadapter.drivers.Capability")
    _check_fields("capability", found)
    return found


def check_info(found: object, driver: str) -> DeviceInfo:
    """Return a row of `Driver.devices` whose fields are what they are declared to be, of a device of `driver`.

    Raises:
        TypeError: it is none, a field is not, or the name is not that of a device of this driver.
    """
    if not isinstance(found, DeviceInfo):
        raise TypeError(f"its devices hold {found!r}, expected nnadapter.drivers.DeviceInfo")
    _check_fields("row of devices", found)
    if found.name != driver and not (found.name.startswith(f"{driver}:") and found.name.isprintable()):
        raise TypeError(f"its devices name {found.name!r}, expected {driver!r} or '{driver}:ID'")
    return found


def _check_fields(what: str, found: Capability | DeviceInfo) -> None:
    for name, hint in _HINTS[type(found)].items():
        value: Any = getattr(found, name)
        if get_origin(hint) is not tuple:
            if not isinstance(value, hint):
                raise TypeError(f"{name} of its {what} is {value!r}, expected {_named(hint)}")
            continue
        if not isinstance(value, tuple):
            raise TypeError(f"{name} of its {what} is {value!r}, expected tuple")
        kind = get_args(hint)[0]
        for each in value:
            if not isinstance(each, kind):
                raise TypeError(f"{name} of its {what} hold {each!r}, expected nnadapter.drivers.{_named(kind)}")


def _named(hint: type | UnionType) -> str:
    return getattr(hint, "__name__", str(hint))
