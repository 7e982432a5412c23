"""Memory of JAX's devices. Arrays there never change: what is copied in is another array."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.xla.carrying import carried, carrier
from nnadapter.drivers.xla.engine import module, own_settings, translated
from nnadapter.errors import DriverError, OutOfMemoryError
from nnadapter.ir.operand import Array, array_type_of


class XlaMemory(Memory):
    """Room for bytes, which holds an array of JAX's or nothing yet.

    Args:
        device: JAX's.
        nbytes: how much may be copied in.
        value: what lies there.
    """

    def __init__(self, device: Any, nbytes: int, value: Any = None) -> None:
        self._device, self._value, self._is_free = device, value, False
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        """See `Memory.copy_in`."""
        self._check()
        held = carried(array)
        copied = held.copy() if held is array and self._device.platform == "cpu" else held  # it would look at `array`
        with translated("XLA has no room", "free some", OutOfMemoryError), own_settings():
            self._value = module().device_put(copied, self._device).block_until_ready()

    def copy_out(self, array: Array) -> None:
        """See `Memory.copy_out`."""
        with own_settings():
            array[...] = np.asarray(self.value(array.dtype, array.shape)).astype(array.dtype, copy=False)

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """What lies there as JAX's array, seen as a tensor of this type."""
        self._check()
        held, dtype = self._value, carrier(dtype)
        if held is not None and held.dtype == dtype and held.shape == shape:
            return held
        count = int(np.prod(shape)) * dtype.itemsize
        seen = np.zeros(self.nbytes, np.uint8)
        with own_settings():
            if held is not None:
                seen[: held.nbytes] = np.asarray(held).reshape(-1).view(np.uint8)
            return module().device_put(seen[:count].view(dtype).reshape(shape), self._device)

    def free(self) -> None:
        """See `Memory.free`: XLA frees the array when nothing that is under way needs it."""
        self._value, self._is_free = None, True

    def _check(self) -> None:
        if self._is_free:
            raise DriverError("the device memory was freed; allocate it again")


def tensor_of(value: Any, name: str, device: Any) -> DeviceTensor:
    """A result of that data type, which nobody else has, as a tensor in memory of its own."""
    dtype = array_type_of(name)
    return DeviceTensor(XlaMemory(device, value.size * dtype.itemsize, value), dtype, value.shape)


def value_of(tensor: DeviceTensor) -> Any:
    """A tensor as JAX's array."""
    assert isinstance(tensor.memory, XlaMemory), "memory of a device is its own"
    return tensor.memory.value(tensor.dtype, tensor.shape)
