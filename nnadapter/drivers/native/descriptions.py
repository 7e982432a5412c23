"""What a driver says of its devices, read and checked."""

from __future__ import annotations

import ctypes
from typing import Any

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    ModelForm,
    OpenSizes,
    OperationSupport,
    Option,
    SizeBounds,
    Threading,
)
from nnadapter.drivers.native.attributes import read_option, read_texts
from nnadapter.drivers.native.codes import DATA_TYPES, DEVICE_TYPES, OPEN_SIZES, THREADINGS
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.structures import make, read, read_pointers, read_text
from nnadapter.drivers.profile import Profile
from nnadapter.errors import DriverError
from nnadapter.ir.operand import DataType

_DATA_TYPES = {code: data_type for data_type, code in DATA_TYPES.items()}
_PROFILE_NUMBERS = (
    "peak_flops",
    "bandwidth",
    "launch_seconds",
    "transfer_seconds",
    "transfer_bandwidth",
    "operation_seconds",
)
_PROFILE_FLAGS = ("channels_last", "host_memory", "simulated")


def device_infos(functions: Functions) -> tuple[DeviceInfo, ...]:
    """The devices that the driver lists; none if it does not list any.

    Raises:
        NNAdapterError: it failed, or listed something that makes no sense.
    """
    if "list_devices" not in functions:
        return (DeviceInfo(name=functions.driver, vendor=functions.vendor, version=functions.version),)
    array, count = ctypes.c_void_p(), ctypes.c_uint32()
    functions.call("list_devices", ctypes.addressof(array), ctypes.addressof(count))
    return tuple(_info(functions, address) for address in _addresses("device infos", array.value, count.value))


def capability_of(functions: Functions, device: int) -> Capability:
    """What an opened device says of itself.

    Raises:
        NNAdapterError: it failed, or said something that makes no sense.
    """
    default = next(code for code, threading in THREADINGS.items() if threading is Threading.SERIAL)
    capability = make("Capability", threading=default)
    if "describe_device" in functions:
        functions.call("describe_device", device, ctypes.addressof(capability))
    return Capability(
        form=ModelForm.IR,
        threading=_known("threading", THREADINGS, capability.threading),
        open_sizes=_known("open_sizes", OPEN_SIZES, capability.open_sizes),
        size_bounds=_bounds(capability) if OPEN_SIZES[capability.open_sizes] is OpenSizes.BOUNDS else None,
        memory_bytes=capability.memory_bytes or None,
        options=tuple(
            _option(address) for address in _addresses("options", capability.options, capability.option_count)
        ),
        operations=tuple(
            _operation(address)
            for address in _addresses("operations", capability.operations, capability.operation_count)
        ),
        limits=read_text(capability.limits),
        profile=_profile(capability.profile) if capability.profile else None,
    )


def _bounds(capability: Any) -> SizeBounds:
    return SizeBounds(
        smallest=capability.smallest_size,
        largest=capability.largest_size or None,
        largest_elements=capability.largest_elements or None,
    )


def _info(functions: Functions, address: int) -> DeviceInfo:
    device_info = read("DeviceInfo", address)
    id_ = read_text(device_info.id)
    versions = (functions.version, read_text(device_info.device_version))
    available = bool(device_info.available)
    return DeviceInfo(
        name=functions.driver if id_ in ("", "0") else f"{functions.driver}:{id_}",
        vendor=read_text(device_info.vendor) or functions.vendor,
        type=_known("type", DEVICE_TYPES, device_info.type) if device_info.type else DeviceType.ACCELERATOR,
        sub_type=read_text(device_info.sub_type),
        version=" / ".join(version for version in versions if version),
        available=available,
        reason="" if available else read_text(device_info.reason) or "the driver says no reason; ask its vendor",
    )


def _option(address: int) -> Option:
    option = read("Option", address)
    if not option.value:
        raise DriverError("an option has no value, expected an NNAdapterAttribute with its default")
    name, default = read_option(option.value)
    return Option(
        name=name,
        default=default,
        help=read_text(option.help),
        choices=read_texts(option.choices, option.choice_count),
        minimum=_minimum(default, option.minimum) if option.has_minimum else None,
        affects_speed=bool(option.affects_speed),
    )


def _minimum(default: object, minimum: float) -> float | int:
    return int(minimum) if isinstance(default, int) else minimum


def _operation(address: int) -> OperationSupport:
    operation = read("OperationSupport", address)
    return OperationSupport(
        type=read_text(operation.type),
        dtypes=_data_types(operation.data_types, operation.data_type_count),
        ranks=(operation.smallest_rank, operation.largest_rank),
        limits=read_text(operation.limits),
    )


def _data_types(address: int | None, count: int) -> frozenset[DataType]:
    if not address or not count:
        return frozenset()
    return frozenset(_known("data type", _DATA_TYPES, code) for code in (ctypes.c_int32 * count).from_address(address))


def _profile(address: int) -> Profile:
    profile = read("Profile", address)
    members: dict[str, Any] = {name: getattr(profile, name) for name in _PROFILE_NUMBERS}
    members.update({name: bool(getattr(profile, name)) for name in _PROFILE_FLAGS})
    return Profile(**members)


def _addresses(kind: str, array: int | None, count: int) -> tuple[int, ...]:
    addresses = read_pointers(array, count)
    valid_addresses = tuple(address for address in addresses if address)
    if len(valid_addresses) < count:
        raise DriverError(
            f"{count} {kind} were announced and {count - len(valid_addresses)} are null; report it to the vendor"
        )
    return valid_addresses


def _known(name: str, table: Any, code: int) -> Any:
    if code not in table:
        raise DriverError(f"{name} is {code}, expected one of {', '.join(map(str, table))}; report it to the vendor")
    return table[code]
