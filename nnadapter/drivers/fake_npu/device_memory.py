"""The device's own memory: reached by copies alone, and counted.

It lies in the host's memory. Kernels compute in it as in the arrays of a caller.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers import DeviceTensor, Memory, MemoryStatistics
from nnadapter.errors import DriverError, InvalidInputError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import new_lock


class DeviceMemory:
    """All memory of one device; safe to use from many threads."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._used = self._peak = self._allocations = self._in = self._out = 0
        self._lock = new_lock()

    @property
    def statistics(self) -> MemoryStatistics:
        """Bytes that are allocated, and bytes that were copied."""
        with self._lock:
            return MemoryStatistics(
                total_bytes=self._total,
                used_bytes=self._used,
                peak_bytes=self._peak,
                allocations=self._allocations,
                bytes_in=self._in,
                bytes_out=self._out,
            )

    def allocate(self, nbytes: int) -> FakeNpuMemory:
        """Allocate memory, or raise OutOfMemoryError."""
        with self._lock:
            left = self._total - self._used
            if not 0 <= nbytes <= left:
                raise OutOfMemoryError(f"fake_npu: {nbytes} bytes were asked for and {left} are left; free some")
            self._used += nbytes
            self._peak = max(self._peak, self._used)
            self._allocations += 1
        return FakeNpuMemory(self, nbytes)

    def tensor(self, dimensions: tuple[int, ...], dtype: Any) -> DeviceTensor:
        """Allocate a tensor."""
        array_type = np.dtype(dtype)
        return DeviceTensor(self.allocate(prod(dimensions) * array_type.itemsize), array_type, dimensions)

    def count(self, freed: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count freed memory and copies."""
        with self._lock:
            self._used -= freed
            self._in += bytes_in
            self._out += bytes_out


class FakeNpuMemory(Memory):
    """Bytes of the device."""

    def __init__(self, device: DeviceMemory, nbytes: int) -> None:
        self._device = device
        self._bytes: Array | None = np.empty(nbytes, np.uint8)
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        self.view(array.shape, array.dtype)[...] = array
        self._device.count(bytes_in=array.nbytes)

    def copy_out(self, array: Array) -> None:
        array[...] = self.view(array.shape, array.dtype)
        self._device.count(bytes_out=array.nbytes)

    def view(self, dimensions: tuple[int, ...], dtype: Any) -> Array:
        """Return the first bytes as a tensor, for kernels."""
        contents, array_type = self._bytes, np.dtype(dtype)
        if contents is None:
            raise DriverError("the device memory was freed; allocate it again")
        needed = prod(dimensions) * array_type.itemsize
        if needed > self.nbytes:
            raise InvalidInputError(f"a tensor of {needed} bytes is looked for in {self.nbytes} bytes of device memory")
        tensor: Array = contents[:needed].view(array_type).reshape(dimensions)
        return tensor

    def free(self) -> None:
        contents, self._bytes = self._bytes, None
        if contents is not None:
            self._device.count(freed=self.nbytes)
