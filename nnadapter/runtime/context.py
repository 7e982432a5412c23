"""A device opened with options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nnadapter.drivers.border import open_context
from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.selection import select_one
from nnadapter.errors import InvalidOptionError
from nnadapter.kernels.around import calling_kernels
from nnadapter.runtime.device import Device
from nnadapter.runtime.exporting import taking_ir
from nnadapter.runtime.handle import Handle


class Context(Handle):
    """What compilations on a device are made in.

    Source: NNAdapterContext_create, _destroy; options are typed and checked, not text.

    Args:
        device: an open device; for one that takes ONNX, models are written as that.
        **options: options of the device by name; `device.capability.options` lists them.

    Raises:
        InvalidOptionError: an option does not exist or does not fit, or `device` is none.
        DeviceUnavailableError: the driver gave no context.
        ClosedError: the device was closed.
    """

    def __init__(self, device: Device, **options: Any) -> None:
        if not isinstance(device, Device):
            raise InvalidOptionError(f"a context is made on a nnadapter.Device, got {device!r}; use Device.acquire")
        device.check_open()
        selected = select_one(device.name, options, device.is_isolated)
        self._device = device
        self._options = MappingProxyType(dict(selected.options))
        capability, context = taking_ir(device.capability, open_context(selected)[1])
        self.driver_context = calling_kernels(device.name, capability, context)
        """The driver's own context, with the device's custom kernels around it where there are any."""
        super().__init__(device, self.driver_context)

    @property
    def device(self) -> Device:
        """The device."""
        return self._device

    @property
    def options(self) -> Mapping[str, OptionValue]:
        """Every option with its value."""
        return self._options

    def __repr__(self) -> str:
        """The kind and the device."""
        return f"Context({self._device.name!r})"
