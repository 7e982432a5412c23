"""Provider libraries and sessions, graph assignment, and probes."""

from __future__ import annotations

import ctypes
import importlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence, Set
from contextlib import redirect_stdout, suppress
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.drivers import SUPPORTED, Option, OptionValues, Reason, Unsupported, Verdict, providers
from nnadapter.drivers.onnxruntime.failures import brief
from nnadapter.drivers.onnxruntime.sessions import Loadable, open_session, without_files
from nnadapter.drivers.onnxruntime.values import FLOAT, HALF, model_of_one
from nnadapter.errors import DeviceUnavailableError, DriverWarning, InvalidOptionError
from nnadapter.onnx.onnxruntime_limits import QUIET
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import memoize, new_lock
from nnadapter.records import dataclass, field

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.onnxruntime.sessions import SessionProfile


_NOT_FOUND = ": cannot open shared object file"
"""Part of an error message of Linux's loader (dl-load.c of glibc; musl adds text)."""
_NEED_CUDA = frozenset(("CUDAExecutionProvider", "TensorrtExecutionProvider"))


def missing_library(provider: str, folder: Path | None = None) -> str:
    """Return the first library that a provider's library needs but the loader does not find; empty if none."""
    named = f"libonnxruntime_providers_{providers.short_name(provider).lower()}.so"
    try:
        ctypes.CDLL(str((folder or Path(onnxruntime.__file__).parent / "capi") / named))
    except OSError as error:
        missing, separator, _ = str(error).partition(_NOT_FOUND)
        return missing if separator and Path(missing).name != named else ""
    return ""


@memoize(1)
def _load_cuda() -> None:
    """Load CUDA's libraries, which the system's loader may not find. Errors appear later, in the session."""
    load = getattr(onnxruntime, "preload_dlls", None)
    if load is not None:
        with suppress(Exception), redirect_stdout(io.StringIO()):  # prints missing files
            load()


GROUP = "nnadapter.execution_providers"


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """Python package that contains a provider's library."""

    module: str
    distribution: str


_PROVIDER_PACKAGES = (
    ("MLXExecutionProvider", "onnxruntime_ep_mlx", "onnxruntime-ep-mlx"),
    ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    ("NvTensorRTRTXExecutionProvider", "onnxruntime_ep_nv_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx-cu12"),
    ("OpenVINOExecutionProvider", "onnxruntime_ep_openvino", "onnxruntime-ep-openvino"),
    ("QNNExecutionProvider", "onnxruntime_qnn", "onnxruntime-qnn"),
    ("WebGpuExecutionProvider", "onnxruntime_ep_webgpu", "onnxruntime-ep-webgpu"),
)
_lock = new_lock()
_registered: dict[str, str] = {}


def installed() -> Mapping[str, LibrarySource]:
    """Return the installed packages with provider libraries, by provider."""
    libraries = {provider: LibrarySource(module, distribution) for provider, module, distribution in _present()}
    for point in metadata.entry_points(group=GROUP):
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
        libraries[point.name] = LibrarySource(point.module, distribution)
    return MappingProxyType(libraries)


def installed_providers() -> Sequence[str]:
    """Return built-in, registered and installed providers."""
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
    """Return the path of a package's library."""
    try:
        return str(importlib.import_module(source.module).get_library_path())
    except Exception as error:
        raise DeviceUnavailableError(
            f"{source.distribution} does not report its provider's library: {type(error).__name__}: {error}; "
            "install it again"
        ) from error


def register(provider: str, path: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """Register a plug-in library, at most once, and return the provider's devices.

    It is registered under ONNX Runtime's usual name or, if that yields no devices, under the provider's.

    Raises:
        DeviceUnavailableError: no library, or no supported hardware.
    """
    if not Path(path).is_file():
        raise DeviceUnavailableError(f"provider {provider!r} has no library at {path!r}; give the path of a file")
    with _lock:
        for name in dict.fromkeys((providers.short_name(provider) + providers.SUFFIX, provider)):
            _register(name, path)
            devices = devices_of(_registered[path])
            if devices:
                return devices
            onnxruntime.unregister_execution_provider_library(_registered.pop(path))
    raise DeviceUnavailableError(
        f"provider {provider!r} of library {path!r} supports no hardware of this machine; "
        "see its vendor for supported hardware and drivers"
    )


def devices_of(provider: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """Return the devices of a registered library."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]


def _register(name: str, path: str) -> None:
    if path in _registered:
        return
    if devices_of(name):
        _registered[path] = name  # registered by the client
        return
    _registered[path] = name  # recorded first, because an interrupt arrives after the call
    try:
        onnxruntime.register_execution_provider_library(name, path)
    except Exception as error:
        del _registered[path]
        raise DeviceUnavailableError(
            f"library {path!r} of provider {name!r} cannot be registered with ONNX Runtime "
            f"{onnxruntime.__version__}: {brief(error)}; install a compatible version"
        ) from error


_MARK = re.compile(r"nnadapter:(\d+):")
_INSERTED = frozenset(("Cast", "MemcpyFromHost", "MemcpyToHost", "Transpose"))
"""Nodes that ONNX Runtime inserts."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of a model's nodes to the provider or the CPU; see `marked`."""

    provider_nodes: frozenset[int]
    cpu_nodes: frozenset[int]
    """Nodes that run at least partly on the CPU."""
    cpu_op_types_in_functions: tuple[str, ...]
    """Op types of CPU nodes from function bodies, which have no positions in the model."""

    @property
    def cpu_work(self) -> str:
        """Phrase that counts nodes on the CPU; empty if there are none."""
        count = len(self.cpu_nodes) + len(self.cpu_op_types_in_functions)
        return f"leaves {count} nodes to ONNX Runtime's CPU" if count else ""

    def without(self, positions: Set[int]) -> Assignment:
        return Assignment(self.provider_nodes, self.cpu_nodes - positions, self.cpu_op_types_in_functions)

    def verdict(self, position: int, provider: str) -> Verdict:
        """Return a node's verdict.

        A node without assignment was folded, fused or expanded. It counts as supported unless nodes from function
        bodies run on the CPU, because they may come from this node.
        """
        # kernel availability does not depend on sizes, acceptance by a compiler may
        reason = Reason.UNSUPPORTED_OPERATION if provider in providers.BY_KERNELS else Reason.DEVICE_REFUSED
        if position in self.cpu_nodes:
            if not self.provider_nodes:
                return Unsupported(reason, f"{provider} takes no node: it supports none, or its options are wrong")
            return Unsupported(reason, f"{provider} leaves the node to ONNX Runtime's CPU")
        if position in self.provider_nodes or not self.cpu_op_types_in_functions:
            return SUPPORTED
        parts = ", ".join(sorted(set(self.cpu_op_types_in_functions))[:3])
        return Unsupported(reason, f"{provider} leaves parts of the node to ONNX Runtime's CPU: {parts}")


def marked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose node names contain their positions."""
    from nnadapter.onnx.graphs import with_nested  # lazy: a compiled file needs no onnx

    copy = type(model)()
    copy.CopyFrom(model)
    for position, node in enumerate(copy.graph.node):
        for number, inner in enumerate(with_nested([node])):
            inner.name = f"nnadapter:{position}:{number}"
    return copy


def read_assignment(session: onnxruntime.InferenceSession, provider: str) -> Assignment:
    """Return a session's assignment of nodes; the model must come from `marked`."""
    assigned_nodes: set[int] = set()
    unassigned_nodes: set[int] = set()
    decomposed_ops: list[str] = []
    for part in session.get_provider_graph_assignment_info():
        ours = part.ep_name == provider
        for node in part.get_nodes():
            mark = _MARK.match(node.name)
            if mark is not None:
                (assigned_nodes if ours else unassigned_nodes).add(int(mark[1]))
            elif not ours and node.op_type not in _INSERTED:
                decomposed_ops.append(node.op_type)
    return Assignment(frozenset(assigned_nodes - unassigned_nodes), frozenset(unassigned_nodes), tuple(decomposed_ops))


_LEVELS = {
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_HARDWARE = ("npu", "gpu", "cpu")

OPTIONS = (
    Option(name="library", default="", help="Path of the provider's plug-in library, if no package contains it."),
    Option(
        name="hardware",
        default="any",
        choices=("any", *_HARDWARE),
        help="Kind of hardware to use; any prefers an NPU to a GPU to a CPU.",
    ),
    Option(
        name="provider_options", default=(), help="The provider's own options, as NAME=VALUE; see its documentation."
    ),
    Option(
        name="optimization",
        default="basic",
        choices=tuple(_LEVELS),
        help="ONNX Runtime's optimization level for a segment before the provider gets it.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Backing:
    """Provider with library, devices and options, ready for sessions."""

    provider: str
    devices: tuple[onnxruntime.OrtEpDevice, ...] = ()
    """The provider's devices; empty for built-in providers."""
    options: Mapping[str, str] = field(default_factory=dict)
    optimization: str = "basic"

    @property
    def version(self) -> str:
        return str(next((device.ep_metadata.get("version", "") for device in self.devices), onnxruntime.__version__))

    @property
    def level(self) -> onnxruntime.GraphOptimizationLevel:
        return _LEVELS[self.optimization]

    @property
    def has_device_memory(self) -> bool:
        """True if values may stay in device memory; supported for device number 0 only."""
        return self.provider in providers.PLACES and self.options.get("device_id", "0") == "0"

    def session_options(self, level: onnxruntime.GraphOptimizationLevel | None = None) -> onnxruntime.SessionOptions:
        """Return session options with the provider, which record the assignment of nodes."""
        options = without_files(onnxruntime.SessionOptions())
        options.log_severity_level = QUIET
        options.graph_optimization_level = self.level if level is None else level
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self.devices:
            options.add_provider_for_devices(list(self.devices), dict(self.options))
        else:
            options.add_provider(self.provider, dict(self.options))
        return options

    def open(
        self,
        model: Loadable,
        level: onnxruntime.GraphOptimizationLevel | None = None,
        profile: SessionProfile | None = None,
        without: Sequence[str] = (),
    ) -> onnxruntime.InferenceSession:
        """Return a session on the provider without the optimizers in `without`; errors are not translated.

        `level` defaults to the option `optimization`; `profile` receives events.
        """
        options = self.session_options(level)
        model.add_to(options)
        session = open_session(
            model,
            options,
            has_pool=False,
            spins=False,
            providers=(),
            without=without,
            profile=profile,
        )
        if self.provider not in session.get_providers():
            raise DeviceUnavailableError(
                f"ONNX Runtime opened a session without {self.provider}, only with "
                f"{', '.join(session.get_providers())}, because the provider's libraries do not load; see its manual"
            )
        return session


def find_backing(name: str, options: OptionValues) -> Backing:
    """Return a provider with its library registered.

    Raises:
        DeviceUnavailableError: the provider or the hardware is missing.
        InvalidOptionError: a provider option is malformed.
    """
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise DeviceUnavailableError(
            f"device 'ort:{name}' needs onnxruntime 1.24 or later, which reports the assignment of nodes, but "
            f"{onnxruntime.__version__} is installed; run: pip install -U onnxruntime"
        )
    packages = installed()
    provider = providers.full_name(name, (*installed_providers(), *onnxruntime.get_all_providers()))
    path = str(options["library"]) or (library_path(packages[provider]) if provider in packages else "")
    devices = register(provider, path) if path else devices_of(provider)
    if not devices and provider not in onnxruntime.get_available_providers():
        raise DeviceUnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} has no {provider!r}; {providers.how_to_get(provider)}, or give "
            "the path of its plug-in library as option 'library'"
        )
    if provider in _NEED_CUDA:
        _load_cuda()
    provider_options = read_provider_options(options["provider_options"])
    _warn_of_unknown(provider, provider_options, path)
    return Backing(
        provider=devices[0].ep_name if devices else provider,
        devices=_chosen(provider, devices, str(options["hardware"])),
        options={**providers.OWN_OPTIONS.get(provider, {}), **provider_options},
        optimization=str(options["optimization"]),
    )


def read_provider_options(texts: object) -> Mapping[str, str]:
    """Parse `NAME=VALUE` texts."""
    assert isinstance(texts, tuple)  # ensured by option validation
    provider_options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or name in provider_options:
            raise InvalidOptionError(f"provider_options must be NAME=VALUE, each name once, got {text!r}")
        provider_options[name] = value
    return provider_options


def _chosen(
    provider: str, devices: Sequence[onnxruntime.OrtEpDevice], hardware: str
) -> tuple[onnxruntime.OrtEpDevice, ...]:
    if not devices and hardware != "any":
        raise InvalidOptionError(
            f"{provider} was built into ONNX Runtime, which chooses its hardware; leave the option 'hardware' out"
        )
    kinds = {device.device.type.name.lower() for device in devices}
    hardware_kind = next((kind for kind in _HARDWARE if kind in kinds), "") if hardware == "any" else hardware
    if devices and hardware_kind not in kinds:
        raise DeviceUnavailableError(
            f"{provider} has no {hardware} hardware on this machine, only {', '.join(sorted(kinds))}; "
            "choose another kind, or 'any'"
        )
    return tuple(device for device in devices if device.device.type.name.lower() == hardware_kind)


def _warn_of_unknown(provider: str, provider_options: Mapping[str, str], path: str) -> None:
    """Warn of options that the library's file does not contain: providers ignore unknown ones."""
    if not provider_options or not path:
        return
    contents = Path(path).read_bytes()
    for name in provider_options:
        if name.encode() not in contents:
            warnings.warn(
                f"{provider} has no option {name!r} in its library, and providers ignore unknown "
                "options; see its documentation for the spelling",
                DriverWarning,
                stacklevel=2,
            )


_SHAPE = (1, 4, 4, 4)


def takes_addition(backing: Backing) -> bool:
    """Return whether the provider computes a float32 addition.

    ONNX Runtime silently drops a provider that fails.

    Raises:
        InvalidOptionError: the provider does not start.
        DeviceUnavailableError: hardware or a library is missing.
    """
    try:
        assignment = read_assignment(backing.open(_addition(FLOAT)), backing.provider)
    except Exception as error:
        if not providers.has_hardware(backing.provider):
            raise DeviceUnavailableError(
                f"{backing.provider} cannot be used: {providers.NO_HARDWARE}; choose another"
            ) from error
        missing = missing_library(backing.provider)
        if missing:
            raise DeviceUnavailableError(
                f"{backing.provider} does not start: {missing} is not found; install it where the system's "
                "loader searches (LD_LIBRARY_PATH)"
            ) from error
        options_text = ", ".join(f"{name}={value}" for name, value in backing.options.items()) or "none"
        raise InvalidOptionError(
            f"{backing.provider} does not start: {brief(error)}; change its options, got {options_text}, or install "
            "the libraries that ONNX Runtime logs as missing"
        ) from error
    return bool(assignment.provider_nodes)


def computes_half(backing: Backing) -> bool:
    """Return whether the provider computes a float16 addition; some accept float16 and fail."""
    x = np.ones(_SHAPE, np.float16)
    try:
        backing.open(_addition(HALF)).run(None, {"a": x, "b": x})
    except Exception:  # noqa: BLE001  any error means no
        return False
    return True


def _addition(element_type: int) -> Loadable:
    return Loadable(model_of_one(b"Add", 2, element_type, _SHAPE))
