"""Devices of this machine by name, and contexts: devices opened with options."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from nnadapter.drivers.boundary import open_context
from nnadapter.drivers.capability import Capability, MemoryStatistics, OptionValue
from nnadapter.drivers.registry import open_device, open_isolated
from nnadapter.drivers.selection import canonical, select_one
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.errors import FAILURES, ClosedError, DriverError, InvalidOptionError, NNAdapterError, describe
from nnadapter.kernels import calling_kernels
from nnadapter.process.forking import new_re_lock
from nnadapter.process.resources import Closable, close_all
from nnadapter.runtime.onnx_context import taking_ir


class Handle:
    """Something of a device. Closing is safe from any thread and more than once; it waits for what is under way.

    Args:
        parent: what it was made from, which closes it before itself.
        owned: what its driver made for it, closed with it; a `close` that raises there is a DriverWarning.
    """

    def __init__(self, parent: Handle | None, owned: Closable | None = None) -> None:
        self._lock = new_re_lock()
        self._closed = False
        self._owned = owned
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        if parent is not None:
            parent._adopt(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise ClosedError if it was closed."""
        if self._closed:
            raise ClosedError(f"{self} is closed; make another one")

    def close(self) -> None:
        """Close what was made from it, then free what it holds. It is not to be used after it."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.close()
        with self._lock:
            owned, self._owned = self._owned, None
        if owned is not None:
            close_all([owned])

    def __enter__(self) -> Self:
        """Itself, if it is open."""
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _adopt(self, child: Handle) -> None:
        with self._lock:
            self.check_open()
            self._children.add(child)


class Device(Handle):
    """One device. It is opened once per process and shared: to close this closes what was made from it, and no more.

    Source: NNAdapterDevice_acquire, _release, _getName.
    """

    def __init__(self, name: str, isolate: bool = False) -> None:
        self._name, self.is_isolated = canonical(name), isolate
        """`is_isolated`: it has a process of its own."""
        self._device = open_isolated(self._name) if isolate else open_device(self._name)
        self._capability = self._device.capability
        super().__init__(None)

    @classmethod
    def acquire(cls, name: str, *, isolate: bool = False) -> Self:
        """Return the device called `name`: `fake_npu`, or `fake_npu:1` where a driver has several.

        Args:
            name: of the device.
            isolate: it has a process of its own, so that a crash of its driver is an error (docs/isolation.md).

        `nnadapter.devices()` lists them all, with the reason where one cannot be used.

        Raises:
            DeviceNotFoundError, DeviceUnavailableError: it does not exist or cannot be used here.
            InvalidOptionError: `name` is no name.
        """
        return cls(name, isolate)

    @property
    def name(self) -> str:
        """What a person writes to choose it."""
        return self._name

    @property
    def capability(self) -> Capability:
        """Its limits, its options, and what it takes, operation by operation."""
        return self._capability

    def memory_statistics(self) -> MemoryStatistics | None:
        """How full its own memory is now; None where it has none, or its driver does not count.

        Raises:
            DriverError: the driver failed.
        """
        try:
            TENSORS.free_orphans()
            return self._device.memory_statistics()
        except NNAdapterError:
            raise
        except FAILURES as error:
            raise DriverError(
                f"device {self._name!r} did not tell how full it is: {describe(error)}; report it to the vendor",
                device=self._name,
            ) from error

    def __repr__(self) -> str:
        """The kind and the name."""
        return f"Device({self._name!r})"


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
