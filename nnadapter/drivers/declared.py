"""What a driver says of its devices, checked before anybody relies on it: plug-ins may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceRole,
    DeviceType,
    ModelForm,
    OperationSupport,
    Option,
    Threading,
)
from nnadapter.drivers.profile import Profile

_CAPABILITY: Mapping[str, type | UnionType] = {
    "form": ModelForm,
    "threading": Threading,
    "role": DeviceRole,
    "memory_bytes": int | None,
    "options": tuple,
    "operations": tuple,
    "limits": str,
    "profile": Profile | None,
}
_INFO: Mapping[str, type | UnionType] = {
    "name": str,
    "vendor": str,
    "type": DeviceType,
    "sub_type": str,
    "version": str,
    "available": bool,
    "reason": str,
    "possible": bool,
    "distribution": str,
}


def check_capability(found: object) -> Capability:
    """Return a capability whose fields are what they are declared to be.

    Raises:
        TypeError: it is none, or a field is not.
    """
    if not isinstance(found, Capability):
        raise TypeError(f"its capability is {found!r}, expected a nnadapter.drivers.Capability")
    _check_fields("capability", found, _CAPABILITY)
    for name, kind in (("options", Option), ("operations", OperationSupport)):
        for each in getattr(found, name):
            if not isinstance(each, kind):
                raise TypeError(f"{name} of its capability hold {each!r}, expected nnadapter.drivers.{kind.__name__}")
    return found


def check_info(found: object, driver: str) -> DeviceInfo:
    """Return a row of `Driver.devices` whose fields are what they are declared to be, of a device of `driver`.

    Raises:
        TypeError: it is none, a field is not, or the name is not that of a device of this driver.
    """
    if not isinstance(found, DeviceInfo):
        raise TypeError(f"its devices hold {found!r}, expected nnadapter.drivers.DeviceInfo")
    _check_fields("row of devices", found, _INFO)
    if found.name != driver and not (found.name.startswith(f"{driver}:") and found.name.isprintable()):
        raise TypeError(f"its devices name {found.name!r}, expected {driver!r} or '{driver}:ID'")
    return found


def _check_fields(what: str, found: object, fields: Mapping[str, type | UnionType]) -> None:
    for name, kind in fields.items():
        value: Any = getattr(found, name)
        if not isinstance(value, kind):
            expected = getattr(kind, "__name__", str(kind))
            raise TypeError(f"{name} of its {what} is {value!r}, expected {expected}")
