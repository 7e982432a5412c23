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


def read_settings(raw_options: Mapping[str, Any] | None) -> Settings:
    """Return what `options=` of torch.compile says: `devices`, and fields of `nnadapter.Options`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: a name is unknown, or a value does not fit.
    """
    raw_options = {} if raw_options is None else raw_options
    option_names = [_DEVICES, *(field.name for field in fields(Options))]
    if not isinstance(raw_options, Mapping):
        raise InvalidOptionError(
            f"options of torch.compile are a dictionary with {', '.join(option_names)}, "
            f"got {type(raw_options).__name__}"
        )
    for name in raw_options:
        if name not in option_names:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, option_names)}")
    devices = raw_options.get(_DEVICES)
    options = Options(**{name: value for name, value in raw_options.items() if name != _DEVICES})
    requests = requests_of(default_devices() if devices is None else devices, options.isolated)
    return Settings(devices=requests, options=options)
