"""Selection: device requests -> device names with validated options."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from nnadapter.drivers.capability import Option, OptionValue, OptionValues
from nnadapter.drivers.registry import open_device, open_isolated, require_driver
from nnadapter.errors import InvalidOptionError, close_names, near_names

CPU = "cpu"
"""Device for nodes that no accelerator supports."""
REFERENCE = "reference"
"""Device for nodes that even the CPU refuses."""
HOSTS = frozenset((CPU, REFERENCE))
"""Devices that do not count as accelerators; they come last."""
DeviceRequest = str | tuple[str, Mapping[str, Any]]
"""`"fake_npu"`, `"fake_npu:0"`, or `("fake_npu", {option: value})`."""


Limits = Mapping[str, float]
"""Time limits of an isolated device in seconds, by phase."""
Isolate = bool | Collection[str] | Mapping[str, Any]
"""Devices to run in other processes: all, none, or by name, optionally with `Limits`."""
ISOLATE = "isolate"
"""Device option that requests or forbids a process of its own."""


class Selected(NamedTuple):
    """Selected device with options."""

    name: str
    options: OptionValues
    named: bool
    """False for a `cpu` that was added automatically."""
    limits: Limits | None = None
    """None for a device in this process."""


def select(requests: DeviceRequest | Sequence[DeviceRequest], isolate: Isolate = False) -> tuple[Selected, ...]:
    """Return the devices in order of preference. `cpu` comes last, unless `reference` is requested after it.

    `isolate` selects devices to isolate, unless their options decide. Host devices never are.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an invalid option, or a device named twice.
    """
    parsed_requests = _parsed_requests(requests)
    names = [name for name, _ in parsed_requests]
    chosen = [select_one(name, options, isolate) for name, options in parsed_requests]
    cpu = [device for device in chosen if device.name == CPU] or [Selected(CPU, check_options(CPU, {}), named=False)]
    trailing_devices = [chosen[-1]] if names[-2:] == [CPU, REFERENCE] else []
    return (*(device for device in chosen if device not in (*cpu, *trailing_devices)), *cpu, *trailing_devices)


def select_one(name: str, options: Mapping[str, Any], isolate: Isolate = False) -> Selected:
    """Return one device, without adding `cpu`; see `select`."""
    device = canonical(name)
    limits = _limits(device, options.get(ISOLATE), isolate)
    if limits is None:
        device_options = {key: value for key, value in options.items() if key != ISOLATE}
        return Selected(device, check_options(device, device_options), named=True)
    supported_options = {option.name: option for option in open_isolated(device, limits.get("open")).capability.options}
    device_options = {key: value for key, value in options.items() if key != ISOLATE or ISOLATE in supported_options}
    return Selected(device, _checked(device, device_options, supported_options), named=True, limits=limits)


def canonical(name: str) -> str:
    """Return the canonical name: `fake_npu:0` is `fake_npu`."""
    if not isinstance(name, str):
        raise InvalidOptionError(f"a device is selected by its name, got {name!r}")
    return name.removesuffix(":0")


def requests_of(requests: DeviceRequest | Sequence[DeviceRequest], isolate: Isolate = False) -> list[DeviceRequest]:
    """Return `requests` as a list, checked as by `select`."""
    select(requests, isolate)
    return list(_listed(requests))


def named_requests(requests: DeviceRequest | Sequence[DeviceRequest]) -> dict[str, Mapping[str, Any]]:
    """Return the options of requested devices by name, unchecked."""
    return dict(_parsed_requests(requests))


def accelerates_first(requests: DeviceRequest | Sequence[DeviceRequest]) -> bool:
    """Return whether the first device is an accelerator; False for invalid requests."""
    try:
        return next(iter(named_requests(requests)), CPU) not in HOSTS
    except InvalidOptionError:
        return False


def _parsed_requests(requests: DeviceRequest | Sequence[DeviceRequest]) -> list[tuple[str, Mapping[str, Any]]]:
    parsed_requests = [_split(request) for request in _listed(requests)]
    names = [name for name, _ in parsed_requests]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOptionError(f"device {name!r} is named twice; name every device once")
    return parsed_requests


def check_options(device: str, options: Mapping[str, Any]) -> OptionValues:
    """Return every option of `device`, converted and checked, with defaults.

    Raises:
        InvalidOptionError: an option is unknown or invalid.
    """
    return _checked(device, options, {option.name: option for option in open_device(device).capability.options})


def _limits(device: str, setting: object, isolate: Isolate) -> Limits | None:
    if setting is None and (device in HOSTS or isinstance(isolate, bool)):
        return {} if isolate and device not in HOSTS else None
    if setting is None:
        assert not isinstance(isolate, bool)
        named = {canonical(name): name for name in isolate}
        for name in named:
            require_driver(name)
        if device not in named:
            return None
        setting = isolate[named[device]] if isinstance(isolate, Mapping) else True
    from nnadapter.drivers.isolation.child_process import read_limits  # most sessions isolate nothing

    limits = read_limits(setting, device)
    if limits is not None and device in HOSTS:
        raise InvalidOptionError(
            f"device {device!r} runs work that other devices failed to do, and cannot be isolated; isolate the others"
        )
    return limits


def _checked(device: str, options: Mapping[str, Any], supported_options: Mapping[str, Option]) -> OptionValues:
    for name in options:
        if name not in supported_options:
            raise InvalidOptionError(
                f"device {device!r} has no option {name!r}; {close_names(name, supported_options)}"
            )
    return {
        name: _converted(device, option, options[name]) if name in options else option.default
        for name, option in supported_options.items()
    }


def _listed(requests: DeviceRequest | Sequence[DeviceRequest]) -> Sequence[DeviceRequest]:
    if isinstance(requests, str):
        return [requests]
    # (name, mapping) is one device
    if isinstance(requests, tuple) and len(requests) == 2 and isinstance(requests[1], Mapping):
        return [requests]
    if not isinstance(requests, Sequence):
        raise InvalidOptionError(f"devices are a name, a pair (name, options) or a list of these, got {requests!r}")
    return list(requests)  # type: ignore[arg-type]


def _split(request: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(request, str):
        return canonical(request), {}
    if isinstance(request, tuple) and len(request) == 2:
        name, options = request
        if isinstance(name, str) and isinstance(options, Mapping):
            return canonical(name), options
    raise InvalidOptionError(f"a device is a name or a pair (name, options), got {request!r}")


def _converted(device: str, option: Option, raw_value: Any) -> OptionValue:
    try:
        value: OptionValue = _CONVERTERS[type(option.default)](raw_value)
    except (TypeError, ValueError) as error:
        expected = "a list of names" if isinstance(option.default, tuple) else type(option.default).__name__
        raise InvalidOptionError(
            f"option {option.name!r} of device {device!r} takes {expected}, got {raw_value!r}"
        ) from error
    if option.choices and value not in option.choices:
        raise InvalidOptionError(
            f"option {option.name!r} of device {device!r} is one of {', '.join(option.choices)}, got {raw_value!r}"
            f"{near_names(raw_value, option.choices, '; ')}"
        )
    if option.minimum is not None and isinstance(value, (int, float)) and value < option.minimum:
        raise InvalidOptionError(
            f"option {option.name!r} of device {device!r} is at least {option.minimum}, got {raw_value!r}"
        )
    return value


def _to_bool(raw_value: object) -> bool:
    if isinstance(raw_value, bool):
        return raw_value
    word = str(raw_value).lower()
    if word not in _WORDS:
        raise ValueError
    return _WORDS[word]


def _to_int(raw_value: object) -> int:
    if isinstance(raw_value, (bool, float)):
        raise TypeError
    return int(raw_value)  # type: ignore[call-overload,no-any-return]


def _to_float(raw_value: object) -> float:
    if isinstance(raw_value, bool):
        raise TypeError
    return float(raw_value)  # type: ignore[arg-type]


def _to_str(raw_value: object) -> str:
    if not isinstance(raw_value, str):
        raise TypeError
    return raw_value


def _to_names(raw_value: object) -> tuple[str, ...]:
    if isinstance(raw_value, str):
        return tuple(name.strip() for name in raw_value.split(",") if name.strip())
    return tuple(_to_str(name) for name in raw_value)  # type: ignore[attr-defined]


_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_CONVERTERS: Mapping[type, Any] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str, tuple: _to_names}
