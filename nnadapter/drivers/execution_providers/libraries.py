"""Libraries of execution providers: plug-ins, and the third-party libraries that providers load.

Plug-in libraries of execution providers: which are installed, and registering them, once per process.

ONNX Runtime looks for no library by itself. A distribution is known by the table below, or by an entry point of the
group `nnadapter.execution_providers`, whose name is the provider's and whose value is a module with
`get_library_path()`, as ONNX Runtime asks of such packages. Nothing is imported to list names.
"""

from __future__ import annotations

import ctypes
import importlib
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType

from nnadapter.drivers.onnxruntime.failures import brief
from nnadapter.drivers.provider_names import SUFFIX, short_name
from nnadapter.errors import DeviceUnavailableError
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import memoize, new_lock

_NOT_FOUND = ": cannot open shared object file"
"""What Linux's loader says behind the name of a library that it does not find (dl-load.c of glibc; musl says more)."""
_NEED_CUDA = frozenset(("CUDAExecutionProvider", "TensorrtExecutionProvider"))


def load_libraries(provider: str) -> None:
    """Load what a provider needs, where packages have it: the system's loader does not look there.

    What is missing is not said here: ONNX Runtime names it when a session is made.
    """
    if provider in _NEED_CUDA:
        _load_cuda()


def missing_library(provider: str, folder: Path | None = None) -> str:
    """Name the first library that the loader does not find for a provider that ONNX Runtime brings; empty if none.

    ONNX Runtime tells it in its log alone.

    Args:
        provider: which did not start.
        folder: where ONNX Runtime has its libraries.
    """
    named = f"libonnxruntime_providers_{short_name(provider).lower()}.so"
    try:
        ctypes.CDLL(str((folder or Path(onnxruntime.__file__).parent / "capi") / named))
    except OSError as error:
        missing, separator, _ = str(error).partition(_NOT_FOUND)
        return missing if separator and Path(missing).name != named else ""
    return ""


@memoize(1)
def _load_cuda() -> None:
    load = getattr(onnxruntime, "preload_dlls", None)
    if load is not None:
        with suppress(Exception), redirect_stdout(io.StringIO()):  # it prints what it does not find
            load()


GROUP = "nnadapter.execution_providers"
"""The entry point group."""


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """An installed package that holds a provider's library."""

    module: str
    """It has `get_library_path()`."""
    distribution: str
    """Name and version."""


_PROVIDER_PACKAGES = (
    ("MLXExecutionProvider", "onnxruntime_ep_mlx", "onnxruntime-ep-mlx"),
    ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx-cu12"),
    ("OpenVINOExecutionProvider", "onnxruntime_ep_openvino", "onnxruntime-ep-openvino"),
    ("QNNExecutionProvider", "onnxruntime_qnn", "onnxruntime-qnn"),
    ("WebGpuExecutionProvider", "onnxruntime_ep_webgpu", "onnxruntime-ep-webgpu"),
)
"""Provider, module, distribution."""
_lock = new_lock()
_registered: dict[str, str] = {}


def installed() -> Mapping[str, LibrarySource]:
    """The installed libraries by provider."""
    libraries = {provider: LibrarySource(module, distribution) for provider, module, distribution in _present()}
    for point in metadata.entry_points(group=GROUP):
        known = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
        libraries[point.name] = LibrarySource(point.module, known)
    return MappingProxyType(libraries)


def installed_providers() -> Sequence[str]:
    """The providers that ONNX Runtime was built with, those of registered libraries, and those of installed ones."""
    return list(dict.fromkeys((*onnxruntime.get_available_providers(), *installed())))


def _present() -> Sequence[tuple[str, str, str]]:
    present = []
    for provider, module, distribution in _PROVIDER_PACKAGES:
        try:
            named = f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
        if util.find_spec(module) is not None:
            present.append((provider, module, named))
    return present


def library_path(source: LibrarySource) -> str:
    """Return where a package has its library.

    Raises:
        DeviceUnavailableError: the package does not say, or has none.
    """
    try:
        return str(importlib.import_module(source.module).get_library_path())
    except Exception as error:
        raise DeviceUnavailableError(
            f"{source.distribution} does not say where its provider's library is: {type(error).__name__}: {error}; "
            "install it again"
        ) from error


def register(provider: str, path: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """Register a library, unless it is already, and return the provider's devices on this machine.

    A library may give its devices the name that it is registered under, or know only its own; so the provider's full
    name comes first, and then what the person wrote.

    Raises:
        DeviceUnavailableError: it is no such library, or drives nothing on this machine.
    """
    if not Path(path).is_file():
        raise DeviceUnavailableError(f"provider {provider!r} has no library at {path!r}; give the path of a file")
    with _lock:
        for name in dict.fromkeys((_with_suffix(provider), provider)):
            _register(name, path)
            devices = devices_of(_registered[path])
            if devices:
                return devices
            _unregister(path)
    raise DeviceUnavailableError(
        f"provider {provider!r} of library {path!r} found no hardware on this machine that it drives; "
        "see its vendor for supported hardware and drivers"
    )


def devices_of(provider: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """The devices that a registered library offers for a provider; none for one that ONNX Runtime was built with."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]


def _register(name: str, path: str) -> None:
    if path in _registered:
        return
    if devices_of(name):
        _registered[path] = name  # the client did it
        return
    _registered[path] = name  # noted first: an interrupt comes after the call, when it is done
    try:
        onnxruntime.register_execution_provider_library(name, path)
    except Exception as error:
        del _registered[path]
        raise DeviceUnavailableError(
            f"library {path!r} of provider {name!r} cannot be registered with ONNX Runtime "
            f"{onnxruntime.__version__}: {brief(error)}; install one that fits it"
        ) from error


def _unregister(path: str) -> None:
    onnxruntime.unregister_execution_provider_library(_registered.pop(path))


def _with_suffix(provider: str) -> str:
    return provider if provider.endswith(SUFFIX) else provider + SUFFIX
