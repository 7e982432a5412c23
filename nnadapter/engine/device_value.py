"""A tensor that stays on its device: made there by a run, and fed to the next one without a copy.

Source: onnxruntime.OrtValue, whose methods it has; DLPack as numpy's `from_dlpack` and torch's take and give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from nnadapter.drivers.boundary import has_of
from nnadapter.drivers.interface import DeviceTensor
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import CPU, canonical
from nnadapter.drivers.tensor_copies import Copies, bind_to_owner
from nnadapter.errors import ClosedError, InputTypeError, InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import plain, type_name
from nnadapter.process.resources import memoize
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE

_MOST_NAMES = 64
"""Devices whose names are looked up once."""
_HOST = (1, 0)
"""As DLPack numbers it: kDLCPU, the first."""
_READ_ONLY_SINCE = (1, 0)
"""The version of DLPack that can say that a tensor is not to be written to."""


class DeviceValue:
    """A tensor on a device, for `InferenceSession.io_binding` and `run_with_ort_values`.

    What a run made is never written to again. Where the device computes in the host's memory it lies there; devices
    with memory of their own hold it, and it is copied to the host only for those who ask. It is freed when nobody has
    it any more, or by `close`, or as a context manager.
    """

    __slots__ = ("_contents", "_device")

    def __init__(self, contents: Copies | Array, device: str) -> None:
        """Hold what a run made, or an array that its owner may still change. Use `from_numpy` instead."""
        self._contents: Copies | Array | None = contents
        self._device = device

    @classmethod
    def from_numpy(cls, array: Array, device: str = CPU) -> Self:
        """Return an array's contents on a device.

        A device with memory of its own gets a copy; any other one shares the array, which is not to be changed while
        it is in use.

        Raises:
            InputTypeError: it is no array.
            InvalidInputError: it cannot lie on such a device, as its elements share bytes there.
            DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
            OutOfMemoryError: the device has no room.
        """
        if not isinstance(array, np.ndarray):
            raise InputTypeError(f"a value on a device is made of a numpy array, got {type(array).__name__}")
        name, array = canonical(device), plain(array)
        if not has_of(name, open_device(name), "has_memory"):
            return cls(array, name)
        if not array.size:  # as a cache at its start, which lies nowhere
            return cls(Copies(array.copy()), name)
        on_device = Copies(array).on(name)
        return cls(Copies(None, {name: on_device}), name)

    @classmethod
    def from_dlpack(cls, tensor: Any, device: str = CPU) -> Self:
        """Return the contents of a tensor of another library (torch, numpy), copied: its owner may change it.

        Raises:
            InvalidInputError: it has no DLPack form, or lies where neither the device nor the host can read it.
        """
        if isinstance(tensor, DeviceValue):
            return cls.from_numpy(tensor.numpy(), device)
        name = canonical(device)
        opened = open_device(name)
        taken = opened.from_dlpack(tensor) if has_of(name, opened, "has_memory") else None
        if taken is not None:
            return cls(Copies(None, {name: bind_to_owner(taken)}), name)
        try:
            shared = np.from_dlpack(tensor)
        except (AttributeError, TypeError, BufferError, RuntimeError) as error:
            raise InvalidInputError(
                f"{type(tensor).__name__} is not given over by DLPack: {error}; copy it to the host's memory first"
            ) from error
        return cls.from_numpy(shared.copy(), device)

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Array, device_type: str = CPU, device_id: int = 0) -> Self:
        """As `from_numpy`, with a device as ONNX Runtime writes it."""
        return cls.from_numpy(numpy_obj, device_named(device_type, device_id))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = CPU, device_id: int = 0
    ) -> Self:
        """Zeros, to bind an output to: the next run puts what it makes in their place."""
        dtype = np.dtype(DTYPE_OF_ELEMENT_TYPE.get(element_type, element_type))
        return cls.from_numpy(np.zeros(tuple(shape), dtype), device_named(device_type, device_id))

    @property
    def device(self) -> str:
        """The device where it lies."""
        return self._device

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its data type, as numpy's."""
        return self.contents.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.contents.nbytes

    @property
    def contents(self) -> Copies | Array:
        """What a session is fed.

        Raises:
            ClosedError: it was closed.
        """
        held = self._contents
        if held is None:
            raise ClosedError("the value on the device was closed; nothing of it is left")
        return held

    def numpy(self) -> Array:
        """A copy in the host's memory, which is the caller's own."""
        held = self.contents
        return held.own_array() if isinstance(held, Copies) else held.copy()

    def update_inplace(self, np_arr: Array) -> None:
        """Put an array of the same data type and shape in the place of what it holds.

        Raises:
            InvalidInputError: it has another data type or shape.
        """
        if (np_arr.dtype, np_arr.shape) != (self.dtype, self.contents.shape):
            raise InvalidInputError(
                f"the value is {self.dtype}{list(self.contents.shape)}, got {np_arr.dtype}{list(np_arr.shape)}; "
                "make another value"
            )
        self.replace(type(self).from_numpy(np_arr.copy(), self._device).contents)

    def replace(self, contents: Copies | Array) -> None:
        """Hold something else from now on; who was fed what it held keeps that."""
        self._contents = contents

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self.contents.shape)

    def data_type(self) -> str:
        """As in `tensor(float)`."""
        return type_name(self.dtype.name)

    def element_type(self) -> int:
        """A code of `onnx.TensorProto`."""
        return ELEMENT_TYPE_OF_DTYPE[self.dtype.name]

    def device_name(self) -> str:
        """The device where it lies."""
        return self._device

    def tensor_size_in_bytes(self) -> int:
        """Bytes that it takes."""
        return self.nbytes

    def has_value(self) -> bool:
        """It was not closed."""
        return self._contents is not None

    def is_tensor(self) -> bool:
        """It is."""
        return True

    def is_tensor_sequence(self) -> bool:
        """It is none."""
        return False

    def is_sparse_tensor(self) -> bool:
        """It is none."""
        return False

    def close(self) -> None:
        """Let go of it; its memory is free when no run uses it any more.

        Raises:
            ClosedError: it was closed before.
        """
        _ = self.contents
        self._contents = None

    def __enter__(self) -> Self:
        """The value itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, unless it is."""
        self._contents = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The contents, read-only where nothing is copied.

        Raises:
            ValueError: no copy is allowed, as numpy says it, and the data type is another.
        """
        array = self._array()
        is_other = dtype is not None and array.dtype != dtype
        if is_other and copy is False:
            raise ValueError(f"the value is {array.dtype}, and is not {np.dtype(dtype)} without a copy; allow one")
        if copy or is_other:
            return array.astype(dtype or array.dtype)
        view = array.view()
        view.setflags(write=False)
        return view

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The contents, as a copy, since some consumers write to what they are told not to.

        Of a device that says so itself they are in its memory, of others in the host's. With `copy=False` they are
        shared, and said to be read-only.

        Raises:
            BufferError: they cannot be shared: they lie on a device, or the consumer cannot be told.
        """
        told = max_version is not None and max_version >= _READ_ONLY_SINCE
        tensor = self._exchanged()
        if copy is not False and tensor is not None:
            return tensor.memory.dlpack(tensor.dtype, tensor.shape, stream=stream, dl_device=dl_device)
        if copy is not False:
            return exported(self.numpy(), stream, max_version, dl_device)
        if not told or (isinstance(self.contents, Copies) and self.contents.devices):
            raise BufferError(f"the value on {self._device!r} is not shared as it is; allow a copy")
        return exported(np.asarray(self), stream, max_version, dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host's memory, (kDLCPU, 0), or the device's that gives its own."""
        tensor = self._exchanged()
        return _HOST if tensor is None else tensor.memory.dlpack_device() or _HOST

    def __repr__(self) -> str:
        """As in `DeviceValue(float32[2, 3] on fake_npu)`."""
        if self._contents is None:
            return "DeviceValue(closed)"
        return f"DeviceValue({self.dtype}{self.shape()} on {self._device})"

    def data_ptr(self) -> int:
        """Return the address of the contents in the host's memory, which the value keeps as long as it has them."""
        array = self._array()
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
            self.replace(array)
        return int(array.ctypes.data)

    def as_sparse_tensor(self) -> Any:
        """Raise TypeError: the value is a dense tensor."""
        raise TypeError("the value is a dense tensor; only an OrtValue of a sparse tensor gives one")

    def _get_c_value(self) -> Any:
        """Return the same as ONNX Runtime's sessions take it."""
        return self._ortvalue

    @property
    def _ortvalue(self) -> Any:
        """The same as ONNX Runtime's sessions take it, in the host's memory."""
        from nnadapter.drivers.onnxruntime.values import native_value

        return native_value(self._array())

    @property
    def _session(self) -> None:
        """ONNX Runtime asks for the session that owns the memory: none of its own does."""

    def _exchanged(self) -> DeviceTensor | None:
        """The tensor on a device that gives it over by itself."""
        held = self.contents
        tensor = held.tensor_on(self._device) if isinstance(held, Copies) else None
        return None if tensor is None or tensor.memory.dlpack_device() is None else tensor

    def _array(self) -> Array:
        held = self.contents
        return held.host() if isinstance(held, Copies) else held


def exported(array: Array, stream: Any, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None) -> Any:
    """An array by DLPack. Before 2.1 numpy knows no versions, and says of nothing that it is read-only.

    Raises:
        BufferError: memory of another device is asked for, or numpy cannot say that the array is read-only.
    """
    try:
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)
    except TypeError:
        if dl_device not in (None, _HOST):
            raise BufferError(f"an array is in the host's memory, not on device {dl_device}") from None
        return array.__dlpack__(stream=stream)


@memoize(_MOST_NAMES)
def device_named(device_type: str, device_id: int) -> str:
    """A device as ONNX Runtime writes it, by one name: `fake_npu` and 1 are `fake_npu:1`, `cuda` is `ort:CUDA`."""
    from nnadapter.drivers.providers import device_name, provider_at  # few write so

    provider = provider_at(canonical(device_type)) if not device_id else None
    if provider is not None:
        return device_name(provider)
    return canonical(f"{device_type}:{device_id}" if device_id else device_type)
