"""Driver registry: built-in drivers, entry points and libraries.

Listing names imports nothing. A broken driver is listed with a reason, and raises an error only when opened.
"""

from __future__ import annotations

import inspect
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from nnadapter.drivers.capability import PRECISION, Capability, DeviceInfo, DeviceRole, DynamicShapes, ModelForm
from nnadapter.drivers.failures import named_call, print_crashes
from nnadapter.drivers.interface import INTERFACE_VERSION, Device, Driver
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceOpeningError,
    DeviceUnavailableError,
    NNAdapterError,
    close_names,
    describe,
    located,
)
from nnadapter.optional_parts import DRIVERS as OPTIONAL_DRIVERS
from nnadapter.process.packages import distribution_of, named
from nnadapter.process.resources import new_lock, new_re_lock
from nnadapter.records import dataclass, field, replace

if TYPE_CHECKING:
    from nnadapter.drivers.isolation.isolated_device import IsolatedDevice


_LINUX = "Linux"


@dataclass(frozen=True, slots=True)
class Machine:
    """Operating system and file system root."""

    system: str = field(default_factory=platform.system)
    root: Path = Path("/")


@dataclass(frozen=True, slots=True)
class HardwareNeeds:
    """Hardware and system requirements of a device."""

    systems: tuple[str, ...]
    files: tuple[str, ...] = ()
    """Glob patterns below the root; on Linux, one of them must match."""
    content: str = ""
    """Required start of a matching file; empty for any content."""

    def met_by(self, machine: Machine) -> bool:
        if machine.system not in self.systems:
            return False
        paths = (path for pattern in self.files for path in machine.root.glob(pattern))
        return machine.system != _LINUX or not self.files or any(map(self._holds, paths))

    def _holds(self, path: Path) -> bool:
        try:
            return not self.content or path.read_text().startswith(self.content)
        except OSError:
            return False


_DEVICES_OF_NAMES = {
    "cuda nvidia cudnn": "ort:CUDA",
    "tensorrt trt": "ort:Tensorrt ort:NvTensorRTRTX",
    "rocm hip amd migraphx": "ort:MIGraphX",
    "directml dml dx12": "ort:Dml",
    "coreml ane mps metal apple": "ort:CoreML",
    "vitis vitisai ryzenai ryzen xdna": "ort:VitisAI",
    "cann ascend huawei": "ort:CANN",
    "webgpu vulkan": "ort:WebGpu",
    "hexagon htp snapdragon qualcomm": "qnn",
    "igpu xpu arc": "openvino:GPU",
    "tpu google": "xla:tpu",
    "jax openxla": "xla:cpu xla:gpu xla:tpu",
    "nnapi android": "ort:Nnapi",
    "xnnpack": "ort:Xnnpack",
    "dnnl onednn mkldnn": "ort:Dnnl",
    "rknpu rockchip": "ort:Rknpu",
    "azure": "ort:Azure",
    "acl mali": "ort:ACL",
    "intel ov": "openvino:CPU openvino:GPU openvino:NPU",
    "gpu": "ort:CUDA ort:MIGraphX openvino:GPU ort:Dml ort:CoreML ort:WebGpu",
    "npu vpu accelerator": "openvino:NPU qnn ort:VitisAI ort:CANN ort:CoreML",
    "onnxruntime host": "cpu",
}
COMMON_NAMES: Mapping[str, Sequence[str]] = MappingProxyType(
    {name: devices.split() for names, devices in _DEVICES_OF_NAMES.items() for name in names.split()}
)
"""Common name -> candidate devices, most likely first."""
_SUFFIX = "executionprovider"
LANE = "@"
"""Separator of a device and a floating precision in the name of a lane."""


def devices_called(name: str) -> Sequence[str]:
    """Return candidate devices for a common name, in any case, with or without `ExecutionProvider`."""
    return COMMON_NAMES.get(name.lower().removesuffix(_SUFFIX), ())


PATH_VARIABLE = "NNADAPTER_DRIVER_PATH"
"""Environment variable with folders of driver libraries, separated as in PATH."""
_NAMES = re.compile(r"(?:lib)?nnadapter_(?P<name>[a-z][a-z0-9_]*)\.(?:so|dylib|dll)")


def libraries() -> Iterator[tuple[str, Path]]:
    """Yield device name and path of every `[lib]nnadapter_NAME.(so|dylib|dll)` in readable folders."""
    for folder in filter(None, os.environ.get(PATH_VARIABLE, "").split(os.pathsep)):
        files: list[Path] = []
        with suppress(OSError):
            files = sorted(Path(folder).iterdir())
        for file in files:
            if match := _NAMES.fullmatch(file.name):
                yield match["name"], file


def library_of(named: object) -> Path | None:
    """Return the path of a driver library: `named`, or its LIBRARY if `named` is a module; None for a class."""
    library = getattr(named, "LIBRARY", None) if isinstance(named, ModuleType) else named
    return Path(library) if isinstance(library, (str, Path)) else None


_HINTS: Mapping[type, Mapping[str, Any]] = {kind: get_type_hints(kind) for kind in (Capability, DeviceInfo)}


def check_capability(capability: object) -> Capability:
    """Validate the field types of a capability."""
    if not isinstance(capability, Capability):
        raise TypeError(f"the device's capability is {capability!r}, expected a nnadapter.drivers.Capability")
    _check_fields("capability", capability)
    is_bounded = capability.dynamic_shapes is DynamicShapes.BOUNDED
    if is_bounded != (capability.dimension_bounds is not None):
        raise TypeError(
            "the capability has only one of dynamic_shapes=DynamicShapes.BOUNDED and dimension_bounds; give both "
            "or neither"
        )
    if is_bounded and capability.form is not ModelForm.IR:
        raise TypeError("the capability has DynamicShapes.BOUNDED and form=ModelForm.ONNX, expected form=ModelForm.IR")
    _check_precisions(capability)
    return capability


def _check_precisions(capability: Capability) -> None:
    names = [row.precision for row in capability.precisions]
    if len(set(names)) != len(names) or capability.default_precision not in names:
        raise TypeError(
            f"precisions of the capability are {', '.join(names) or 'empty'}, expected distinct ones with its "
            f"default_precision, {capability.default_precision}"
        )
    floating = capability.floating_precisions
    choices = next((option.choices for option in capability.options if option.name == PRECISION), ())
    if len(floating) > 1 and not set(choices).issuperset(floating):
        raise TypeError(
            f"the capability has several floating precisions, expected an option {PRECISION!r} with the choices "
            f"{', '.join(floating)}"
        )


def check_info(row: object, driver: str) -> DeviceInfo:
    """Validate a row of `Driver.devices`."""
    if not isinstance(row, DeviceInfo):
        raise TypeError(f"the driver's list of devices holds {row!r}, expected nnadapter.drivers.DeviceInfo")
    _check_fields("DeviceInfo", row)
    if row.name != driver and not (row.name.startswith(f"{driver}:") and row.name.isprintable()):
        raise TypeError(f"the driver lists a device with the name {row.name!r}, expected {driver!r} or '{driver}:ID'")
    return row


def _check_fields(subject: str, declaration: Capability | DeviceInfo) -> None:
    for name, hint in _HINTS[type(declaration)].items():
        value: Any = getattr(declaration, name)
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        tuples = [kind for kind in kinds if get_origin(kind) is tuple]
        if isinstance(value, tuple(kind for kind in kinds if kind not in tuples)):
            continue
        if not tuples or not isinstance(value, tuple):
            raise TypeError(f"{name} of the {subject} is {value!r}, expected {'tuple' if tuples else _named(hint)}")
        element = get_args(tuples[0])[0]
        for item in value:
            if not isinstance(item, element):
                raise TypeError(f"{name} of the {subject} hold {item!r}, expected nnadapter.drivers.{_named(element)}")


def _named(hint: type | UnionType) -> str:
    return getattr(hint, "__name__", str(hint))


GROUP = "nnadapter.drivers"
"""Entry point group; the entry point's name is the device's."""


class DriverSource(NamedTuple):
    """Source of a driver's code."""

    target: str
    """`module:Class`; for C drivers `module`, `module:path` or the library's path."""
    distribution: str
    """Name and version of the Python distribution; NNADAPTER_DRIVER_PATH for a library found by that variable."""
    library: Path | None = None
    is_around: bool = False
    """True if the driver's devices wrap other devices, which are named after the colon."""


_DISTRIBUTION = "nnadapter"
_BUILT_IN = {
    name: DriverSource(target, _DISTRIBUTION, is_around=name == "faulty")
    for name, target in {
        "cpu": "nnadapter.drivers.onnxruntime.driver:CpuDriver",
        "fake_npu": "nnadapter.drivers.fake_npu.driver:FakeNpuDriver",
        "null": "nnadapter.drivers.null:NullDriver",
        "reference": "nnadapter.drivers.reference:ReferenceDriver",
        **OPTIONAL_DRIVERS,
    }.items()
}


class _Failure(NamedTuple):
    reason: str


_lock = new_re_lock()
_loaded: dict[str, Driver | _Failure] = {}
_devices: dict[str, Device] = {}
_isolated: dict[str, IsolatedDevice] = {}
_isolating: dict[str, threading.Lock] = {}
"""Lock per device, so that a device that hangs while opening blocks no other."""
_device_locks: dict[str, threading.Lock] = {}


@cache
def sources() -> Mapping[str, DriverSource]:
    """Return the sources of all drivers, sorted by name. Plug-ins cannot replace built-in names.

    If two plug-ins claim one name, neither is usable, and the device's row has the reason.
    """
    sources_by_name = dict(_BUILT_IN)
    for name, source in _external_drivers():
        registered_source = sources_by_name.get(name)
        if registered_source is None:
            sources_by_name[name] = source
        elif name not in _BUILT_IN and registered_source.target != source.target:
            _loaded[name] = _Failure(_conflict_text(name, registered_source, source))
    return MappingProxyType(dict(sorted(sources_by_name.items())))


def source_of(driver_name: str) -> DriverSource:
    """Return the source of an existing driver; search for plug-ins only if necessary."""
    return _BUILT_IN.get(driver_name) or sources()[driver_name]


def devices_of_distribution(distribution: str) -> list[str]:
    """Return the names of drivers in a Python distribution."""
    return [name for name, source in sources().items() if source.distribution == distribution]


def _external_drivers() -> Iterator[tuple[str, DriverSource]]:
    from importlib import metadata  # slow to import, and not needed for built-in drivers

    for point in metadata.entry_points(group=GROUP):
        yield point.name, DriverSource(point.value, distribution_of(point))
    for name, path in libraries():
        yield name, DriverSource(str(path), PATH_VARIABLE, path)


def refresh() -> None:
    """Forget found drivers and load failures. Opened devices stay open."""
    with _lock:
        sources.cache_clear()
        for name in [name for name, loaded in _loaded.items() if isinstance(loaded, _Failure)]:
            del _loaded[name]


def devices() -> tuple[DeviceInfo, ...]:
    """Return every device, with a reason if unavailable. Never raises for a broken driver."""
    rows = (*(row for name in sources() for row in _rows(name)), *_shadowed())
    return tuple(sorted(rows, key=lambda row: row.name))


def _shadowed() -> Iterator[DeviceInfo]:
    for name, source in _external_drivers():
        if name in _BUILT_IN:
            yield DeviceInfo(
                name=f"{name} of {source.distribution}",
                available=False,
                reason=f"{source.target} is named {name!r}, which is built in; its vendor must choose another name",
                distribution=source.distribution,
            )


def device_info(name: str) -> DeviceInfo:
    """Return the row of a device (`driver`, `driver:id` or a lane), without loading other drivers.

    Raises:
        DeviceNotFoundError: no driver has that name.
    """
    if name != device_of(name):
        return replace(device_info(device_of(name)), name=name)
    if inside(name) != name and name not in _isolated:
        return _complete(replace(device_info(inside(name)), name=name), _BUILT_IN[name.partition(":")[0]])
    driver_name = name.partition(":")[0]
    require_driver(name)
    with _lock:
        isolated = None if name in _devices else _isolated.get(name)
    if isolated is not None:  # do not load the driver into this process
        return isolated.info
    rows = _rows(driver_name)
    return next((row for row in rows if row.name.removesuffix(":0") == name), rows[0])


def device_of(lane: str) -> str:
    """Return the device of a lane: `openvino` for `openvino@bfloat16`; other names unchanged."""
    return lane.partition(LANE)[0]


def inside(name: str) -> str:
    """Return the name of the innermost device: `fake_npu` for the wrapper `faulty:fake_npu`, or for a lane of it."""
    name = device_of(name)
    driver_name, _, device_id = name.partition(":")
    is_around = driver_name in _BUILT_IN and _BUILT_IN[driver_name].is_around
    return inside(device_id) if is_around and device_id else name


def require_driver(name: str) -> None:
    """Check that the driver of a device exists, without loading it."""
    driver_name = device_of(name).partition(":")[0]
    if driver_name not in _BUILT_IN and driver_name not in sources():
        raise DeviceNotFoundError(_unknown_text(driver_name))


def library_path(name: str) -> Path | None:
    """Return the shared library of a driver; None for Python drivers."""
    require_driver(name)
    with _lock:
        driver = _driver(name)
    if isinstance(driver, _Failure):
        raise DeviceUnavailableError(f"driver {name!r} cannot be used: {driver.reason}")
    return getattr(driver, "library_path", None)


def open_device(name: str) -> Device:
    """Return a device (`driver`, `driver:id` or a lane), opened once per process.

    Raises:
        DeviceNotFoundError: no driver has that name.
        DeviceUnavailableError: the driver or the device cannot be used.
    """
    name = device_of(name)
    driver_name, _, device_id = name.partition(":")
    require_driver(name)
    with _lock:
        if name not in _devices:
            _devices[name] = _open(driver_name, device_id, name)
        return _devices[name]


def open_isolated(name: str, limit_s: float | None = None) -> IsolatedDevice:
    """Return a device in a process of its own, shared by all sessions; its driver is not loaded here.

    `limit_s` is the time limit for opening.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: see `open_device`.
        DeviceLostError: the process died while opening.
    """
    # lazy: most sessions isolate nothing
    from nnadapter.drivers.isolation.isolated_device import IsolatedDevice

    name = device_of(name)
    require_driver(name)
    with _lock:
        isolating = _isolating.setdefault(name, new_lock())
    with isolating:
        if name not in _isolated:
            device = IsolatedDevice(name, opening_s=limit_s, stays=False)
            try:
                check_capability(device.capability)
            except BaseException as error:
                device.close()
                if isinstance(error, TypeError | ValueError):
                    text = f"device {name!r} did not open: {describe(error)}; ask its vendor"
                    raise DeviceUnavailableError(text) from error
                raise
            _isolated[name] = device
        return _isolated[name]


def device_lock(name: str) -> threading.Lock:
    """Return the lock of a device; all sessions that use a serial device share it."""
    with _lock:
        return _device_locks.setdefault(inside(name), new_lock())


def _open(driver_name: str, device_id: str, name: str) -> Device:
    driver = _driver(driver_name)
    if isinstance(driver, _Failure):
        raise DeviceUnavailableError(f"device {name!r} cannot be used: {driver.reason}")
    try:
        print_crashes()
        device: Device = named_call(name, "open")(driver.open, device_id)
        role = check_capability(device.capability).role
        if driver_name not in _BUILT_IN and not role.accelerates:
            raise TypeError(f"the device's role is {role.value!r}, expected {DeviceRole.ACCELERATOR.value!r}")
        return device
    except KeyboardInterrupt:
        raise
    except NNAdapterError as error:
        located(error, name, "open")
        raise
    except BaseException as error:  # a plug-in may raise SystemExit
        raise DeviceOpeningError(
            f"device {name!r} did not open: {describe(error)}; ask its vendor", device=name, phase="open"
        ) from error


def _driver(name: str) -> Driver | _Failure:
    if name not in _loaded:
        _loaded[name] = _load(name, source_of(name))
    return _loaded[name]


def _load(name: str, source: DriverSource) -> Driver | _Failure:
    try:
        factory = source.library or named(source.target)
        library = library_of(factory)
        if library is not None:
            return _load_library(name, library)
        problem = _check(factory, source)
        return _Failure(problem) if problem else factory()  # type: ignore[operator]  # checked by _check
    except DeviceUnavailableError as error:
        return _Failure(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a plug-in may raise anything
        return _Failure(
            f"driver {name!r} of {source.distribution} did not load: {describe(error)}; "
            "install what is missing or remove it"
        )


def _load_library(name: str, path: Path) -> Driver:
    # lazy: declaring C structures is slow
    from nnadapter.drivers.native.driver import NativeDriver

    return NativeDriver(name, path)


def _check(factory: object, source: DriverSource) -> str:
    where = f"{source.target} of {source.distribution}"
    if not (inspect.isclass(factory) and issubclass(factory, Driver)):
        expected = "a sub-class of nnadapter.drivers.Driver, or a module whose LIBRARY is the path of a driver in C"
        return f"{where} is {type(factory).__name__} {factory!r}, expected {expected}"
    missing = sorted(getattr(factory, "__abstractmethods__", ()))
    if missing:
        return f"{where} lacks the required methods {', '.join(missing)}; implement them"
    major, minor = factory.interface_version
    if major != INTERFACE_VERSION[0] or minor > INTERFACE_VERSION[1]:
        ours = ".".join(map(str, INTERFACE_VERSION))
        return (
            f"{where} was written for driver interface {major}.{minor}, this nnadapter has {ours}; "
            f"install a driver for {INTERFACE_VERSION[0]}.x or another nnadapter"
        )
    return ""


def _rows(name: str) -> tuple[DeviceInfo, ...]:
    source = source_of(name)
    return tuple(_complete(row, source) for row in _reported_rows(name) or [DeviceInfo(name=name)])


def _reported_rows(name: str) -> list[DeviceInfo]:
    with _lock:
        driver = _driver(name)
    if isinstance(driver, _Failure):
        return [DeviceInfo(name=name, available=False, reason=driver.reason)]
    try:
        return [check_info(row, name) for row in named_call(name, "devices")(driver.devices)]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a plug-in may raise anything
        return [DeviceInfo(name=name, available=False, reason=describe(error))]


def _complete(row: DeviceInfo, source: DriverSource) -> DeviceInfo:
    row = replace(row, distribution=row.distribution or source.distribution)
    if not row.available:
        return row
    try:
        return replace(row, capability=open_device(row.name).capability)
    except NNAdapterError as error:
        return replace(row, available=False, reason=str(error))


def _unknown_text(name: str) -> str:
    meant = [text for device in devices_called(name) for text in _state(device)]
    hint = f"it may be {' or '.join(meant)}" if meant else close_names(name, sources())
    ended = hint if hint.endswith("?") else f"{hint}."
    return f"no driver offers a device named {name!r}; {ended} Run `nnadapter devices` to see them all"


def _state(device: str) -> Iterator[str]:
    for row in _rows(device.partition(":")[0]):
        if row.name == device or row.name.startswith(f"{device}."):
            yield f"{row.name!r} ({'which is here' if row.available else row.reason})"


def _conflict_text(name: str, registered_source: DriverSource, other: DriverSource) -> str:
    first, second = (f"{source.target} of {source.distribution}" for source in (registered_source, other))
    return f"two drivers are named {name!r}: {first} and {second}; remove one of them"


def driver_files(device: str) -> list[Path]:
    """Return the driver's library or all Python files of its package; empty if built in."""
    source = source_of(inside(device).partition(":")[0])
    if source.distribution == _DISTRIBUTION:
        return []
    if source.library is not None:
        return [source.library]
    module_name, _, attribute = source.target.partition(":")
    module = sys.modules.get(module_name)
    library = library_of(getattr(module, attribute, None) if attribute else module)
    if library is not None:
        return [library]
    package = sys.modules.get(module_name.partition(".")[0])
    folders = list(getattr(package, "__path__", ()))
    if folders:
        return [Path(file) for file in sorted(name for folder in folders for name in _python_in(folder))]
    file = getattr(module, "__file__", None)
    return [] if file is None else [Path(file)]


def _python_in(folder: str) -> Iterator[str]:
    for inner, _, names in os.walk(folder):
        yield from (os.path.join(inner, name) for name in names if name.endswith(".py"))  # noqa: PTH118
