"""Memory of the device that a provider computes on: what ONNX Runtime calls an OrtValue lies there.

Values of data types that its Python interface does not take (bfloat16, float8, 4 bits) stay arrays of the host's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.names import PLACES
from nnadapter.drivers.execution_providers.small_models import model_of_one
from nnadapter.drivers.foreign_errors import translated_as
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.drivers.onnxruntime.values import is_foreign_type, results_of
from nnadapter.errors import DriverError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.process.cache import remembered
from nnadapter.process.real_onnxruntime import onnxruntime
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE

Form = tuple[np.dtype[Any], tuple[int, ...]]
"""Data type and dimensions."""
_BOOL = "tensor(bool)"
_KINDS = 16
"""Data types that are copied on a device."""


class EpMemory(Memory):
    """Room for bytes, which holds an OrtValue, an array, or nothing yet.

    Args:
        provider: whose device it is.
        nbytes: how much may be copied in.
        value: what lies there.
        form: its data type and dimensions, if it is an OrtValue.
    """

    def __init__(self, provider: str, nbytes: int, value: Any = None, form: Form | None = None) -> None:
        self._provider, self._value, self._is_free = provider, value, False
        self._form = form
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        """See `Memory.copy_in`."""
        self._check()
        is_foreign = is_foreign_type(array.dtype)
        self._value = array.copy() if is_foreign else _placed(array, PLACES[self._provider])
        self._form = None if is_foreign else (array.dtype, array.shape)

    def copy_out(self, array: Array) -> None:
        """See `Memory.copy_out`."""
        self._check()
        source = np.zeros(self.nbytes, np.uint8) if self._value is None else self._value
        source = source if isinstance(source, np.ndarray) else np.asarray(source.numpy())
        if source.dtype == array.dtype and source.shape == array.shape:
            array[...] = source
        else:
            array.reshape(-1).view(np.uint8)[:] = (
                np.ascontiguousarray(source).reshape(-1).view(np.uint8)[: array.nbytes]
            )

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """What lies there as an OrtValue, seen as a tensor of this type, which is one that those take."""
        self._check()
        if self._form == (dtype, shape):
            return self._value
        array = np.empty(shape, dtype)
        self.copy_out(array)
        return _placed(array, PLACES[self._provider])

    def free(self) -> None:
        """See `Memory.free`: ONNX Runtime frees a value when nothing refers to it any more."""
        self._value, self._form, self._is_free = None, None, True

    def dlpack_device(self) -> tuple[int, int] | None:
        """See `Memory.dlpack_device`."""
        self._check()
        value = self._value
        if not isinstance(value, onnxruntime.OrtValue) or not hasattr(value, "__dlpack_device__"):
            return None
        if value.data_type() == _BOOL:  # which it gives over as uint8
            return None
        kind, number = value.__dlpack_device__()
        return int(kind), int(number)

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """See `Memory.dlpack`."""
        return _copied(self.value(dtype, shape), self._provider).__dlpack__()

    def _check(self) -> None:
        if self._is_free:
            raise DriverError("the device memory was freed; allocate it again")


def taken_over(tensor: Any, provider: str) -> DeviceTensor | None:
    """A copy of what another library gives over by DLPack; None where it lies elsewhere, or in another way."""
    try:
        value = onnxruntime.OrtValue.from_dlpack(tensor)
    except Exception:  # noqa: BLE001  this ONNX Runtime takes nothing, or not this; whatever it raises, the host is next
        return None
    place = PLACES[provider]
    if value.device_name() != place or 0 in value.shape() or is_foreign_type(_dtype_of(value)):
        return None
    # Who gave it may still be making it, in work of its own that a copy to the host waits for.
    _placed(np.zeros(1, np.float32), place).numpy()
    return tensor_of(_copied(value, provider), provider)


def tensor_of(value: Any, provider: str) -> DeviceTensor:
    """An OrtValue that nobody else has, as a tensor in memory of its own."""
    form = dtype, shape = _dtype_of(value), tuple(value.shape())
    return DeviceTensor(EpMemory(provider, value.tensor_size_in_bytes(), value, form), dtype, shape)


def _placed(array: Array, place: str) -> Any:
    # On the CPU it would look at `array`. Numpy's `ascontiguousarray` gives a scalar an axis.
    source_array = array if place != "cpu" and array.flags.c_contiguous else array.copy()
    with translated_as(f"ONNX Runtime has no room on {place}", "free some, or see its words", OutOfMemoryError, brief):
        return onnxruntime.OrtValue.ortvalue_from_numpy(source_array, place, 0)


def _copied(value: Any, provider: str) -> Any:
    """Another value that holds the same, on the same device; it is there on return."""
    binding = _identity(provider, value.element_type()).io_binding()
    with translated_as(f"ONNX Runtime has no room on {PLACES[provider]}", "free some", OutOfMemoryError, brief):
        binding.bind_ortvalue_input("a", value)
        binding.bind_output("c", PLACES[provider], 0)
        binding._session.run_with_iobinding(binding._iobinding, None)
        return results_of(binding)[0]


@remembered(_KINDS)
def _identity(provider: str, element_type: int) -> onnxruntime.InferenceSession:
    """A session that copies: ONNX Runtime offers no other copy from a device to itself for all of its providers."""
    return Backing(provider=provider).open(model_of_one(b"Identity", 1, element_type))


def _dtype_of(value: Any) -> np.dtype[Any]:
    return _dtype(value.element_type())


@remembered(len(DTYPE_OF_ELEMENT_TYPE))
def _dtype(element_type: int) -> np.dtype[Any]:
    return np.dtype(DTYPE_OF_ELEMENT_TYPE[element_type])
