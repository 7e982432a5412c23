"""The driver `ort`: a device for every execution provider that ONNX Runtime knows, here or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    ModelForm,
    OpenSizes,
    OptionValues,
    Threading,
)
from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.execution_providers.backing import OPTIONS, find_backing
from nnadapter.drivers.execution_providers.context import EpContext
from nnadapter.drivers.execution_providers.libraries import LibrarySource, installed, providers_here
from nnadapter.drivers.execution_providers.memory import EpMemory, taken_over
from nnadapter.drivers.execution_providers.names import (
    BY_KERNELS,
    GRAPHICS,
    NEEDS,
    NO_HARDWARE,
    PLACES,
    device_name,
    full_name,
    has_hardware,
    how_to_get,
    is_cpu,
)
from nnadapter.drivers.execution_providers.probing import takes_addition
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.errors import DeviceNotFoundError
from nnadapter.process.real_onnxruntime import onnxruntime

_FIXED_SIZES = Capability(
    form=ModelForm.ONNX,
    # ONNX Runtime itself keeps runs apart where a provider wants that.
    threading=Threading.REENTRANT,
    options=OPTIONS,
    limits="what ONNX Runtime assigns to the provider; asking compiles",
)
_BY_KERNELS = replace(
    _FIXED_SIZES,
    open_sizes=OpenSizes.ANY,
    takes_references=True,
    # A compiler fuses what it likes; kernels are fused by ONNX Runtime or not at all.
    options=tuple(replace(each, default="all") if each.name == "optimization" else each for each in OPTIONS),
)


class EpDriver(Driver):
    """Offers a device per execution provider: `ort:NAME`."""

    def open(self, device_id: str) -> Device:
        """See `Driver.open`; whether the provider is here is found when its options are known.

        Raises:
            DeviceNotFoundError: no provider is named, or the CPU's, which is another device.
        """
        if device_id in ("", "0"):
            raise DeviceNotFoundError("ort is many devices: name a provider, as in 'ort:CUDA'; see `nnadapter devices`")
        provider = full_name(device_id, onnxruntime.get_all_providers())
        if is_cpu(provider):
            raise DeviceNotFoundError(f"there is no device 'ort:{device_id}': ONNX Runtime's CPU is the device 'cpu'")
        return EpDevice(device_id, provider)

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`: no library is loaded for it."""
        here, packages = providers_here(), installed()
        names = sorted({*here, *onnxruntime.get_all_providers()})
        return tuple(_row(name, here, packages.get(name)) for name in names if not is_cpu(name))


class EpDevice(Device):
    """One provider.

    Args:
        name: what a person calls it.
        provider: what ONNX Runtime calls it.
    """

    def __init__(self, name: str, provider: str) -> None:
        self._name, self._provider = name, provider

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return _BY_KERNELS if self._provider in BY_KERNELS else _FIXED_SIZES

    @cached_property
    def has_memory(self) -> bool:
        """See `Device.has_memory`."""
        provider = self._provider
        return provider in PLACES and provider in onnxruntime.get_available_providers() and has_hardware(provider)

    def allocate(self, nbytes: int) -> Memory:
        """See `Device.allocate`: ONNX Runtime has what lies there, and nothing until something is copied in."""
        return EpMemory(self._provider, nbytes)

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        """See `Device.from_dlpack`: what lies on the device already, without gaps."""
        return taken_over(tensor, self._provider)

    def create_context(self, options: OptionValues) -> Context:
        """See `Device.create_context`.

        Raises:
            DeviceUnavailableError: the provider is not here, or not for the wanted hardware.
            InvalidOptionError: an option does not fit.
        """
        backing = find_backing(self._name, options)
        takes_addition(backing)
        return EpContext(backing)


def _row(provider: str, here: Sequence[str], package: LibrarySource | None) -> DeviceInfo:
    version, has = onnxruntime.__version__, has_hardware(provider)
    why = f"not in ONNX Runtime {version}; {how_to_get(provider)}" if provider not in here else NO_HARDWARE
    return DeviceInfo(
        name=device_name(provider),
        vendor="ONNX Runtime",
        type=DeviceType.GPU if provider in GRAPHICS else DeviceType.ACCELERATOR,
        sub_type=provider,
        version=version,
        available=provider in here and has,
        possible=has and (provider in here or provider in NEEDS),
        reason="" if provider in here and has else why,
        distribution="" if package is None else package.distribution,
    )
