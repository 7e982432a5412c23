"""Memory on a device: allocated, freed, copied in, out and between devices, and counted."""

from __future__ import annotations

import ctypes

from nnadapter.drivers.capability import MemoryStatistics
from nnadapter.drivers.device_tensors import Memory
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.streams import NativeStream
from nnadapter.drivers.native.structures import make
from nnadapter.errors import DriverError, InvalidInputError
from nnadapter.ir.operand import Array


class DeviceMemory(Memory):
    """Bytes on a device; a context manager that frees them.

    Args:
        functions: the driver's; its group `memory` is there.
        device: the device's handle.
        nbytes: how many.

    Raises:
        OutOfMemoryError: the device has no room.
        DriverError: it failed otherwise.
    """

    def __init__(self, functions: Functions, device: int, nbytes: int) -> None:
        self._functions = functions
        self.nbytes = nbytes
        self.handle: int | None = functions.made("allocate", device, nbytes)
        """The driver's handle; None after `free`."""

    def copy_in(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Copy a contiguous array to the device, done on return.

        With a stream, call its `synchronize` before the array is changed or let go.
        """
        self._check("copied in", array, offset)
        self._copy("copy_in", array, offset, stream)

    def copy_out(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Fill a contiguous, writable array from the device, done on return.

        With a stream, call its `synchronize` before the array is read or let go.
        """
        if not array.flags.writeable:
            raise InvalidInputError("the array to copy to is read-only; give one that can be written to")
        self._check("copied out", array, offset)
        self._copy("copy_out", array, offset, stream)

    def copy_from(self, source: DeviceMemory, nbytes: int | None = None, stream: NativeStream | None = None) -> None:
        """Copy the first `nbytes` (all, if None) of other memory here, of this device or another of the driver."""
        count = source.nbytes if nbytes is None else nbytes
        if not 0 <= count <= min(self.nbytes, source.nbytes):
            raise InvalidInputError(f"{count} bytes are to be copied from {source.nbytes} to {self.nbytes} bytes")
        self._functions.call(
            "copy_between", self._open(), 0, source._open(), 0, count, None if stream is None else stream.handle
        )

    def free(self) -> None:
        """Free it; nothing happens the second time."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("free_memory", handle)

    def __enter__(self) -> DeviceMemory:
        """The memory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free it."""
        self.free()

    def _open(self) -> int:
        if self.handle is None:
            raise DriverError("the device memory was freed; allocate it again")
        return self.handle

    def _check(self, action: str, array: Array, offset: int) -> None:
        if not array.flags.c_contiguous:
            raise InvalidInputError(f"the array that is {action} is not contiguous; pass numpy.ascontiguousarray of it")
        if offset < 0 or offset + array.nbytes > self.nbytes:
            raise InvalidInputError(f"{array.nbytes} bytes at {offset} are {action}, there are {self.nbytes} bytes")

    def _copy(self, name: str, array: Array, offset: int, stream: NativeStream | None) -> None:
        address = array.__array_interface__["data"][0] if array.nbytes else None
        handle = None if stream is None else stream.handle
        self._functions.call(name, self._open(), offset, address, array.nbytes, handle)


def statistics_of(functions: Functions, device: int) -> MemoryStatistics:
    """How full a device is now.

    Raises:
        NNAdapterError: the driver failed.
    """
    statistics = make("MemoryStatistics")
    functions.call("statistics", device, ctypes.addressof(statistics))
    return MemoryStatistics(
        total_bytes=statistics.total_bytes, used_bytes=statistics.used_bytes, peak_bytes=statistics.peak_bytes
    )
