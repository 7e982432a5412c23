"""A driver that is a shared library, and its devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nnadapter.drivers.capability import Capability, DeviceInfo, MemoryStatistics, OptionValues
from nnadapter.drivers.interface import Device, Driver
from nnadapter.drivers.native.attributes import option
from nnadapter.drivers.native.context import NativeContext
from nnadapter.drivers.native.descriptions import capability_of, device_infos
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.library import load
from nnadapter.drivers.native.memory import DeviceMemory, statistics_of
from nnadapter.drivers.native.streams import NativeEvent, NativeStream
from nnadapter.drivers.native.structures import Holder
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, DriverError, InvalidOptionError


class NativeDriver(Driver):
    """See `Driver`.

    Args:
        name: what its devices are called.
        path: the shared library.

    Raises:
        DeviceUnavailableError: the library cannot be used.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._functions = load(name, path)
        self.library_path = path
        """The shared library."""

    def open(self, device_id: str) -> NativeDevice:
        """See `Driver.open`."""
        handle = self._functions.made(
            "open_device", device_id.encode(), failure=DeviceUnavailableError, misuse=DeviceNotFoundError
        )
        try:
            return NativeDevice(self._functions, handle)
        except DriverError as error:
            self._functions.plain("close_device", handle)
            raise DeviceUnavailableError(f"{self._functions.driver}: {error}") from error

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`."""
        return device_infos(self._functions)


class NativeDevice(Device):
    """An opened device. Beside what every device does, it has memory and streams where its driver has them."""

    def __init__(self, functions: Functions, handle: int) -> None:
        self._functions, self._handle = functions, handle
        self._capability = capability_of(functions, handle)

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return self._capability

    def create_context(self, options: OptionValues) -> NativeContext:
        """See `Device.create_context`."""
        holder = Holder()
        array = holder.pointers([option(holder, name, value) for name, value in options.items()])
        handle = self._functions.made(
            "create_context",
            self._handle,
            len(options),
            array,
            failure=DeviceUnavailableError,
            misuse=InvalidOptionError,
        )
        return NativeContext(self._functions, self._handle, handle)

    @property
    def has_memory(self) -> bool:
        """Whether memory of the device can be allocated and counted."""
        return "allocate" in self._functions

    @property
    def has_raw_inputs(self) -> bool:
        """See `Device.has_raw_inputs`: of every driver in C."""
        return True

    @property
    def has_streams(self) -> bool:
        """See `Device.has_streams`: of a driver that lets the host wait for an event, too."""
        return self._knows_streams and "synchronize_event" in self._functions

    @property
    def _knows_streams(self) -> bool:
        return "create_stream" in self._functions

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Return new memory of the device.

        Raises:
            OutOfMemoryError: there is no room.
            DriverError: the driver has no functions for memory.
        """
        self._need("memory", self.has_memory)
        return DeviceMemory(self._functions, self._handle, nbytes)

    def memory_statistics(self) -> MemoryStatistics | None:
        """See `Device.memory_statistics`."""
        return statistics_of(self._functions, self._handle) if self.has_memory else None

    @property
    def minimum_chunk(self) -> int:
        """Bytes that the smallest allocation takes."""
        self._need("memory", self.has_memory)
        return int(self._functions.plain("minimum_chunk", self._handle))

    def create_stream(self) -> NativeStream:
        """See `Device.create_stream`."""
        self._need("streams", self._knows_streams)
        return NativeStream(self._functions, self._handle)

    def create_event(self) -> NativeEvent:
        """See `Device.create_event`."""
        self._need("streams", self._knows_streams)
        return NativeEvent(self._functions, self._handle)

    def synchronize(self) -> None:
        """Wait until all work of all streams is done."""
        self._need("streams", self._knows_streams)
        self._functions.call("synchronize_device", self._handle)

    def close(self) -> None:
        """See `Device.close`."""
        self._functions.plain("close_device", self._handle)

    def _need(self, feature: str, is_available: bool) -> None:
        if not is_available:
            raise DriverError(f"driver {self._functions.driver!r} has no functions for {feature}; they are optional")
