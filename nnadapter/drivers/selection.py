"""Selection: device requests -> device names with validated options."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from nnadapter.drivers.capability import PRECISION, Capability, Option, OptionValue, OptionValues, Precision
from nnadapter.drivers.registry import LANE, device_of, open_device, open_isolated, require_driver
from nnadapter.errors import InvalidOptionError, close_names, near_names

CPU = "cpu"
"""Device for nodes that no accelerator supports."""
REFERENCE = "reference"
"""Device for nodes that even the CPU refuses."""
HOSTS = frozenset((CPU, REFERENCE))
"""Devices that do not count as accelerators; they come last."""
DeviceRequest = str | tuple[str, Mapping[str, Any]]
"""`"fake_npu"`, `"fake_npu:0"`, the lane `"fake_npu@float16"`, or one of these with options: `("fake_npu", {})`."""


Limits = Mapping[str, float]
"""Time limits of an isolated device in seconds, by phase, such as `run`."""
Isolate = bool | Collection[str] | Mapping[str, Any]
"""Devices to isolate in processes: True for all, names, or names with `Limits`."""
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
    precision: Precision = Precision.FLOAT32


def select(
    requests: DeviceRequest | Sequence[DeviceRequest], isolate: Isolate = False, precision: str | None = None
) -> tuple[Selected, ...]:
    """Return the devices in order of preference. `cpu` comes last, unless `reference` is requested after it.

    `isolate` selects devices to isolate; a device's option `isolate` takes precedence. Host devices are never isolated.
    `precision` is `Options.precision`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an invalid option, a device named twice, or no device computes in `precision`.
    """
    parsed_requests = _parsed_requests(requests)
    names = [name for name, _ in parsed_requests]
    chosen = [select_one(name, options, isolate, precision) for name, options in parsed_requests]
    _check_precision(chosen, precision)
    cpu = [device for device in chosen if device.name == CPU] or [Selected(CPU, check_options(CPU, {}), named=False)]
    trailing_devices = [chosen[-1]] if names[-2:] == [CPU, REFERENCE] else []
    return (*(device for device in chosen if device not in (*cpu, *trailing_devices)), *cpu, *trailing_devices)


def select_one(
    name: str, options: Mapping[str, Any], isolate: Isolate = False, precision: str | None = None
) -> Selected:
    """Return the device `name` with its options, without adding `cpu`; see `select`."""
    device = canonical(name)
    limits = _limits(device, options.get(ISOLATE), isolate)
    if limits is None:
        device_options = {key: value for key, value in options.items() if key != ISOLATE}
        values, computes = _checked(device, device_options, open_device(device).capability, precision)
        return Selected(device, values, named=True, precision=computes)
    capability = open_isolated(device, limits.get("open")).capability
    is_supported = any(option.name == ISOLATE for option in capability.options)
    device_options = {key: value for key, value in options.items() if key != ISOLATE or is_supported}
    values, computes = _checked(device, device_options, capability, precision)
    return Selected(device, values, named=True, limits=limits, precision=computes)


def canonical(name: str) -> str:
    """Return the canonical name: `fake_npu` for `fake_npu:0`, `cpu` for its only lane `cpu@float32`."""
    if not isinstance(name, str):
        raise InvalidOptionError(f"a device is selected by its name, got {name!r}")
    device, separator, precision = name.partition(LANE)
    device = device.removesuffix(":0")
    if not separator or (device in HOSTS and precision == Precision.FLOAT32):
        return device
    return f"{device}{LANE}{precision}"


def requests_of(requests: DeviceRequest | Sequence[DeviceRequest], isolate: Isolate = False) -> list[DeviceRequest]:
    """Return `requests` as a list, checked as by `select`."""
    select(requests, isolate)
    return list(_listed(requests))


def named_requests(requests: DeviceRequest | Sequence[DeviceRequest]) -> dict[str, Mapping[str, Any]]:
    """Return the options of requested devices by name, unchecked."""
    return dict(_parsed_requests(requests))


def accelerates_first(requests: DeviceRequest | Sequence[DeviceRequest]) -> bool:
    """Return whether the first requested device is an accelerator; False for invalid requests."""
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
    return _checked(device, options, open_device(device).capability)[0]


def _limits(device: str, setting: object, isolate: Isolate) -> Limits | None:
    if setting is None and (device in HOSTS or isinstance(isolate, bool)):
        return {} if isolate and device not in HOSTS else None
    if setting is None:
        assert not isinstance(isolate, bool)
        named = {canonical(name): name for name in isolate}
        for name in named:
            require_driver(name)
        requested = next((name for name in (device, device_of(device)) if name in named), None)
        if requested is None:
            return None
        setting = isolate[named[requested]] if isinstance(isolate, Mapping) else True
    from nnadapter.drivers.isolation.child_process import read_limits  # most sessions isolate nothing

    limits = read_limits(setting, device)
    if limits is not None and device in HOSTS:
        raise InvalidOptionError(
            f"device {device!r} is the fallback of other devices and cannot be isolated; isolate the others"
        )
    return limits


def _check_precision(chosen: Sequence[Selected], precision: str | None) -> None:
    if precision in frozenset(Precision) and all(selected.precision != precision for selected in chosen):
        precisions = ", ".join(f"{selected.name} in {selected.precision}" for selected in chosen)
        raise InvalidOptionError(
            f"option 'precision' is {precision!r}, and no device computes in it ({precisions}); "
            "`nnadapter devices NAME` lists the precisions of a device"
        )


def _checked(
    device: str, options: Mapping[str, Any], capability: Capability, precision: str | None = None
) -> tuple[OptionValues, Precision]:
    supported_options = {option.name: option for option in capability.options}
    options = {**options, **_lane_options(device, options, capability)}
    if precision is not None and PRECISION in supported_options and PRECISION not in options:
        chosen = precision if precision in frozenset(Precision) else capability.default_precision
        options |= {PRECISION: chosen} if chosen in capability.floating_precisions else {}
    for name in options:
        if name not in supported_options:
            raise InvalidOptionError(
                f"device {device!r} has no option {name!r}; {close_names(name, supported_options)}"
            )
    values = {
        name: _converted(device, option, options[name]) if name in options else option.default
        for name, option in supported_options.items()
    }
    return values, capability.precision_of(values)


def _lane_options(device: str, options: Mapping[str, Any], capability: Capability) -> Mapping[str, Any]:
    target, separator, precision = device.partition(LANE)
    if not separator:
        return {}
    floating = [str(row) for row in capability.floating_precisions]
    if precision not in floating:
        reason = f"it computes in {', '.join(floating)}"
        if precision not in frozenset(Precision):
            reason += near_names(precision, floating, "; ")
        elif not Precision(precision).is_floating:
            reason = f"{precision} is for quantized models: use `nnadapter quantize` first"
        raise InvalidOptionError(f"device {target!r} has no precision {precision!r}; {reason}")
    if options.get(PRECISION, precision) != precision:
        raise InvalidOptionError(
            f"option {PRECISION!r} of device {device!r} is {options[PRECISION]!r}, which contradicts the device's "
            "name; leave it out"
        )
    return {PRECISION: precision} if any(option.name == PRECISION for option in capability.options) else {}


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
    return str.__str__(raw_value)  # drivers and files get a plain string, not a StrEnum


def _to_names(raw_value: object) -> tuple[str, ...]:
    if isinstance(raw_value, str):
        return tuple(name.strip() for name in raw_value.split(",") if name.strip())
    return tuple(_to_str(name) for name in raw_value)  # type: ignore[attr-defined]


_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_CONVERTERS: Mapping[type, Any] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str, tuple: _to_names}
