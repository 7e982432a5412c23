"""The driver `ort`: a device for every execution provider that ONNX Runtime knows, here or not."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.capability import Capability, DeviceInfo, ModelForm, OptionValues, Threading
from nnadapter.drivers.execution_providers.backing import OPTIONS, find_backing
from nnadapter.drivers.execution_providers.context import EpContext
from nnadapter.drivers.execution_providers.libraries import LibrarySource, installed, providers_here
from nnadapter.drivers.execution_providers.names import NEEDS, device_name, full_name, how_to_get, is_cpu
from nnadapter.drivers.execution_providers.probing import takes_addition
from nnadapter.drivers.hardware import Machine
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.errors import DeviceNotFoundError
from nnadapter.process.real_onnxruntime import onnxruntime

_CAPABILITY = Capability(
    form=ModelForm.ONNX,
    # ONNX Runtime itself keeps runs apart where a provider wants that.
    threading=Threading.REENTRANT,
    options=OPTIONS,
    limits="what ONNX Runtime assigns to the provider; asking compiles",
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
        if is_cpu(full_name(device_id, onnxruntime.get_available_providers())):
            raise DeviceNotFoundError(f"there is no device 'ort:{device_id}': ONNX Runtime's CPU is the device 'cpu'")
        return EpDevice(device_id)

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`: no library is loaded for it."""
        here, packages = providers_here(), installed()
        names = sorted({*here, *onnxruntime.get_all_providers()})
        return tuple(_row(name, here, packages.get(name)) for name in names if not is_cpu(name))


class EpDevice(Device):
    """One provider."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return _CAPABILITY

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
    version = onnxruntime.__version__
    return DeviceInfo(
        name=device_name(provider),
        vendor="ONNX Runtime",
        sub_type=provider,
        version=version,
        available=provider in here,
        possible=provider in here or (provider in NEEDS and NEEDS[provider].met_by(Machine())),
        reason="" if provider in here else f"not in ONNX Runtime {version}; {how_to_get(provider)}",
        distribution="" if package is None else package.distribution,
    )
