"""The driver `qnn`: ONNX Runtime's QNN provider, with the backend found and its options checked by trying them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from nnadapter.drivers.capability import Capability, DeviceInfo, ModelForm, OptionValues, Threading
from nnadapter.drivers.execution_providers.backing import Backing, find_backing
from nnadapter.drivers.execution_providers.context import EpContext
from nnadapter.drivers.execution_providers.libraries import LibrarySource, installed
from nnadapter.drivers.execution_providers.names import NEEDS
from nnadapter.drivers.execution_providers.probing import takes_addition
from nnadapter.drivers.hardware import Machine
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.drivers.qnn.options import OPTIONS, own_options
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    InvalidOptionError,
    MissingDeviceExtraError,
    MissingExtraError,
)
from nnadapter.process.extras import missing_extra
from nnadapter.process.standard_output import native_prints_to_stderr

PROVIDER = "QNNExecutionProvider"
_CAPABILITY = Capability(
    form=ModelForm.ONNX,
    threading=Threading.SERIAL,
    options=OPTIONS,
    limits="what QNN's graph assignment says; shapes must be known; asking compiles",
)


class QnnDriver(Driver):
    """Offers Qualcomm's accelerators, or the emulator in their compiler where there is none."""

    def open(self, device_id: str) -> Device:
        """See `Driver.open`.

        Raises:
            DeviceNotFoundError: there is only device 0.
            MissingDeviceExtraError: the package is missing.
        """
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"qnn has no device {device_id!r}, only '0'; write qnn or qnn:0")
        package = installed().get(PROVIDER)
        if package is None:
            raise _missing()
        return QnnDevice(package)

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`: no library is loaded for it."""
        package = installed().get(PROVIDER)
        row = DeviceInfo(name="qnn", vendor="Qualcomm", sub_type="HTP, GPU")
        if package is None:
            possible = NEEDS[PROVIDER].met_by(Machine())
            return (replace(row, available=False, reason=str(_missing()), possible=possible),)
        return (replace(row, version=package.distribution.rpartition(" ")[2], distribution=package.distribution),)


def _missing() -> MissingExtraError:
    return missing_extra("qnn", "device 'qnn'", MissingDeviceExtraError)


class QnnDevice(Device):
    """Qualcomm's accelerator."""

    def __init__(self, package: LibrarySource) -> None:
        self._package = package

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return _CAPABILITY

    def create_context(self, options: OptionValues) -> Context:
        """See `Device.create_context`.

        Raises:
            DeviceUnavailableError: QNN does not load, or has no device or backend here.
            InvalidOptionError: QNN takes nothing with these options.
        """
        base_backing = find_backing(PROVIDER, {**options, "library": ""})
        emulated = all(device.device.type.name != "NPU" for device in base_backing.devices)
        qnn_options = own_options(options, self._backend(str(options["backend"])), emulated=emulated)
        backing = replace(base_backing, options={**qnn_options, **base_backing.options})
        with native_prints_to_stderr() if emulated else nullcontext():  # the emulator greets when it is loaded
            if not takes_addition(backing):
                raise InvalidOptionError(_dropped(backing))
        return EpContext(backing)

    def _backend(self, name: str) -> str:
        module = importlib.import_module(self._package.module)
        path = str(getattr(module, f"get_qnn_{name}_path")())
        if not Path(path).is_file():
            raise DeviceUnavailableError(
                f"backend {name!r} of qnn is not in {self._package.distribution}, which has no {path!r}; "
                "choose another backend"
            )
        return path


def _dropped(backing: Backing) -> str:
    """Why QNN takes nothing: the options without any one of which it would."""
    guilty = [name for name in backing.options if name != "backend_path" and _works_without(backing, name)]
    if not guilty:
        return (
            "QNN takes nothing at all on this machine, not even an addition, and ONNX Runtime would compute "
            f"everything on the CPU; the hardware or driver behind {Path(backing.options['backend_path']).name} is "
            "missing, so choose another backend"
        )
    named = ", ".join(f"{name}={backing.options[name]}" for name in guilty)
    return (
        f"QNN takes nothing at all with {named}, not even an addition, and ONNX Runtime would compute everything on "
        "the CPU; leave that out, or give what the QNN SDK lists for your chip (soc_model 43 is Snapdragon 8 Gen 2)"
    )


def _works_without(backing: Backing, name: str) -> bool:
    remaining_options = {key: value for key, value in backing.options.items() if key != name}
    try:
        return takes_addition(replace(backing, options=remaining_options))
    except InvalidOptionError as error:
        return "soc_model" in str(error) and name == "soc_model"
