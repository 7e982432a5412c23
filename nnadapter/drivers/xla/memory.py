"""Memory of JAX's devices. Arrays there never change: what is copied in is another array."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.xla.carrying import carried, carrier
from nnadapter.drivers.xla.engine import module, own_settings, translated
from nnadapter.errors import DriverError, GivenUpError, OutOfMemoryError
from nnadapter.ir.operand import Array, array_type_of


class XlaMemory(Memory):
    """Room for bytes, which holds an array of JAX's or nothing yet, or nothing any more: XLA took it for a result.

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
        with translated("the tensor is gone", "feed it anew", GivenUpError), own_settings():  # given up meanwhile
            array[...] = np.asarray(self.value(array.dtype, array.shape)).astype(array.dtype, copy=False)

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """What lies there as JAX's array, seen as a tensor of this type."""
        held, dtype = self._held(), carrier(dtype)
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

    def dlpack_device(self) -> tuple[int, int] | None:
        """See `Memory.dlpack_device`."""
        held = self._held()
        return None if held is None else tuple(map(int, held.__dlpack_device__()))  # type: ignore[return-value]

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """See `Memory.dlpack`: a copy, since JAX cannot say that what it gives is not to be written to."""
        with translated("XLA has no room", "free some", OutOfMemoryError), own_settings():
            return self.value(dtype, shape).__dlpack__(copy=True, **asked)

    def _held(self) -> Any:
        self._check()
        held = self._value
        if held is not None and held.is_deleted():
            raise GivenUpError("the tensor was given up to a run, which made a result in its memory; feed it anew")
        return held

    def _check(self) -> None:
        if self._is_free:
            raise DriverError("the device memory was freed; allocate it again")


def taken_over(tensor: Any, device: Any) -> DeviceTensor | None:
    """A copy of what another library gives over by DLPack; None where JAX does not take it."""
    if not hasattr(tensor, "__dlpack__"):
        return None
    try:
        with translated("JAX does not take it", "copy it to the host", DriverError), own_settings():
            # JAX 0.10 makes no copy of aligned memory, whatever it is asked; who is donated that would write into it.
            value = module().numpy.from_dlpack(tensor, device=device).copy().block_until_ready()
    except DriverError:
        return None
    if not value.size or carrier(value.dtype) != value.dtype:
        return None
    return DeviceTensor(XlaMemory(device, value.nbytes, value), value.dtype, value.shape)


def tensor_of(value: Any, name: str, device: Any) -> DeviceTensor:
    """A result of that data type, which nobody else has, as a tensor in memory of its own."""
    dtype = array_type_of(name)
    return DeviceTensor(XlaMemory(device, value.size * dtype.itemsize, value), dtype, value.shape)


def value_of(tensor: DeviceTensor) -> Any:
    """A tensor as JAX's array."""
    assert isinstance(tensor.memory, XlaMemory), "memory of a device is its own"
    return tensor.memory.value(tensor.dtype, tensor.shape)
