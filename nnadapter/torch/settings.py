"""What a person says to `torch.compile(..., options=...)`: devices, and the options of every session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nnadapter.drivers.selection import DeviceRequest, requests_of
from nnadapter.errors import InvalidOptionError, close_names
from nnadapter.options import Options, default_devices

_DEVICES = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the sessions of a compiled function are made with."""

    devices: Sequence[DeviceRequest]
    """As `InferenceSession` takes them."""
    options: Options
    """How nodes are placed."""


def read_settings(given: Mapping[str, Any] | None) -> Settings:
    """Return what `options=` of torch.compile says: `devices`, and fields of `nnadapter.Options`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: a name is unknown, or a value does not fit.
    """
    given = {} if given is None else given
    known = [_DEVICES, *(field.name for field in fields(Options))]
    if not isinstance(given, Mapping):
        raise InvalidOptionError(
            f"options of torch.compile are a dictionary with {', '.join(known)}, got {type(given).__name__}"
        )
    for name in given:
        if name not in known:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, known)}")
    devices = given.get(_DEVICES)
    options = Options(**{name: value for name, value in given.items() if name != _DEVICES})
    requests = requests_of(default_devices() if devices is None else devices, options.isolated)
    return Settings(devices=requests, options=options)
