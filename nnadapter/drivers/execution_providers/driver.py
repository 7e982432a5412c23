"""Driver `ort`: one device for each execution provider of ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnadapter.drivers import providers
from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    DynamicShapes,
    ModelForm,
    OptionValues,
    Threading,
)
from nnadapter.drivers.execution_providers.backing import (
    OPTIONS,
    Backing,
    LibrarySource,
    find_backing,
    installed,
    installed_providers,
    takes_addition,
)
from nnadapter.drivers.execution_providers.program import EpMemory, deserialize_program, import_dlpack
from nnadapter.drivers.interface import Admission, Context, Device, DeviceTensor, Driver, Memory, Program
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import memoize
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.records import replace
from nnadapter.traces.trace import SILENT, Trace
from partition.graph import Verdict

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.execution_providers.compiler import Asker


class EpContext(Context):
    """Context of a provider with options. The compiler is imported lazily."""

    def __init__(self, backing: Backing, trace: Trace = SILENT, lane: str = "") -> None:
        self._backing = backing
        self._trace, self._lane = trace, lane

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        return self._asker.supported(model)

    def admit(self, model: onnx.ModelProto) -> Admission:
        return self._asker.admit(model)

    def with_trace(self, trace: Trace, lane: str) -> EpContext:
        return EpContext(self._backing, trace, lane)

    def compile(self, model: onnx.ModelProto) -> Program:
        return self._asker.compile(model)

    def deserialize(self, blob: bytes) -> Program:
        return deserialize_program(blob, self._backing)

    def deserialize_view(self, blob: memoryview) -> Program:
        return deserialize_program(blob, self._backing, is_checked=True)

    def close(self) -> None:
        asker = vars(self).get("_asker")
        if asker is not None:
            asker.close()

    @cached_property
    def _asker(self) -> Asker:
        from nnadapter.drivers.execution_providers.compiler import Asker

        return Asker(self._backing, self._trace, self._lane)


_TRY_SECONDS = 60.0
_UNUSABLE = 3
_TRY = """
import sys
sys.path[:] = sys.argv[2:]
from nnadapter.drivers.execution_providers.driver import try_provider
sys.exit(try_provider(sys.argv[1]))
"""
_STATIC_SHAPES = Capability(
    form=ModelForm.ONNX,
    # ONNX Runtime serializes runs where necessary.
    threading=Threading.REENTRANT,
    options=OPTIONS,
    limits="nodes that ONNX Runtime assigns to the provider; a verdict requires compilation",
)
_BY_KERNELS = replace(
    _STATIC_SHAPES,
    dynamic_shapes=DynamicShapes.ANY,
    supports_external_initializers=True,
    # Compilers fuse by themselves; kernels only through ONNX Runtime.
    options=tuple(replace(option, default="all") if option.name == "optimization" else option for option in OPTIONS),
)


class EpDriver(Driver):
    """Driver of devices `ort:NAME`."""

    def open(self, device_id: str) -> Device:
        if device_id in ("", "0"):
            raise DeviceNotFoundError("ort needs the name of a provider, as in 'ort:CUDA'; see `nnadapter devices`")
        provider = providers.full_name(device_id, onnxruntime.get_all_providers())
        if provider == CPU_PROVIDER:
            raise DeviceNotFoundError(f"there is no device 'ort:{device_id}': ONNX Runtime's CPU is the device 'cpu'")
        return EpDevice(device_id, provider)

    def devices(self) -> Sequence[DeviceInfo]:
        """Return a row per provider. Plug-in libraries are tried in separate processes."""
        present_providers, packages = installed_providers(), installed()
        names = sorted({*present_providers, *onnxruntime.get_all_providers()} - {CPU_PROVIDER})
        return tuple(_row(name, name in present_providers, packages.get(name)) for name in names)


class EpDevice(Device):
    """Execution provider."""

    def __init__(self, name: str, provider: str) -> None:
        self._name, self._provider = name, provider

    @property
    def capability(self) -> Capability:
        return _BY_KERNELS if self._provider in providers.BY_KERNELS else _STATIC_SHAPES

    @cached_property
    def has_memory(self) -> bool:
        provider = self._provider
        return (
            provider in providers.PLACES
            and provider in onnxruntime.get_available_providers()
            and providers.has_hardware(provider)
        )

    def allocate(self, nbytes: int) -> Memory:
        return EpMemory(self._provider, nbytes)

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        return import_dlpack(tensor, self._provider)

    def create_context(self, options: OptionValues) -> Context:
        backing = find_backing(self._name, options)
        takes_addition(backing)
        return EpContext(backing)


def why_unusable(provider: str) -> str:
    """Return why an installed provider is unusable, or an empty text. A test process loads plug-in libraries."""
    if provider in installed():
        return _try_in_process(provider, tuple(path_entry for path_entry in sys.path if isinstance(path_entry, str)))
    return "" if providers.has_hardware(provider) else providers.NO_HARDWARE


@memoize(32)
def _try_in_process(provider: str, path: tuple[str, ...]) -> str:
    command = [sys.executable or "python", "-c", _TRY, provider, *path]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the process that tests its library did not start, or did not end in time: {error}"
    if process.returncode and process.returncode != _UNUSABLE:
        return (
            f"its library crashed the test process with exit code {process.returncode}; install another version of it"
        )
    return process.stdout.decode(errors="replace").strip() if process.returncode else ""


def try_provider(provider: str) -> int:
    """Print why a provider is unusable; return 0 if it is usable or only lacks options."""
    device = EpDevice(providers.short_name(provider), provider)
    defaults = {option.name: option.default for option in device.capability.options}
    try:
        with prints_to_stderr():
            device.create_context(defaults)
    except DeviceUnavailableError as error:
        print(error)
        return _UNUSABLE
    except InvalidOptionError:
        pass
    return 0


def _row(provider: str, is_here: bool, package: LibrarySource | None) -> DeviceInfo:
    version = onnxruntime.__version__
    reason = why_unusable(provider) if is_here else f"not in ONNX Runtime {version}; {providers.how_to_get(provider)}"
    return DeviceInfo(
        name=providers.device_name(provider),
        vendor="ONNX Runtime",
        type=DeviceType.GPU if provider in providers.GRAPHICS else DeviceType.ACCELERATOR,
        sub_type=provider,
        version=version,
        available=not reason,
        installable=not reason or (providers.has_hardware(provider) and (is_here or provider in providers.NEEDS)),
        reason=reason,
        distribution="" if package is None else package.distribution,
    )
