"""Device-resident tensor: output of one run, fed to the next without a copy.

Source: onnxruntime.OrtValue, with the same methods; DLPack, as in numpy's and torch's `from_dlpack`.
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
_HOST = (1, 0)
"""(kDLCPU, 0) in DLPack."""
_READ_ONLY_SINCE = (1, 0)


class DeviceValue:
    """Tensor on a device, for `InferenceSession.io_binding` and `run_with_ort_values`.

    Outputs of runs are never overwritten. A device with memory of its own holds the value, which is copied to the host
    on demand. Other values are in host memory. A value is freed by `close`, by a `with` block, or with its last
    reference.
    """

    __slots__ = ("_contents", "_device")

    def __init__(self, contents: Copies | Array, device: str) -> None:
        """Wrap an output of a run, or an array, without a copy. Applications use `from_numpy` instead."""
        self._contents: Copies | Array | None = contents
        self._device = device

    @classmethod
    def from_numpy(cls, array: Array, device: str = CPU) -> Self:
        """Return a value with an array's contents on a device.

        A device with memory of its own gets a copy. Other devices share the array, which must not change while in use.

        Raises:
            InputTypeError: not an array.
            InvalidInputError: the device cannot hold the type, because elements share bytes.
            DeviceNotFoundError, DeviceUnavailableError: the device is missing or unusable.
            OutOfMemoryError: the device is out of memory.
        """
        if not isinstance(array, np.ndarray):
            raise InputTypeError(f"a device value is made from a numpy array, got {type(array).__name__}")
        name, array = canonical(device), plain(array)
        if not has_of(name, open_device(name), "has_memory"):
            return cls(array, name)
        if not array.size:
            return cls(Copies(array.copy()), name)
        on_device = Copies(array).on(name)
        return cls(Copies(None, {name: on_device}), name)

    @classmethod
    def from_dlpack(cls, tensor: Any, device: str = CPU) -> Self:
        """Return a value with a copy of another library's tensor (torch, numpy).

        Raises:
            InvalidInputError: the tensor has no DLPack support, or neither the device nor the host can read its memory.
        """
        if isinstance(tensor, DeviceValue):
            return cls.from_numpy(tensor.numpy(), device)
        name = canonical(device)
        opened = open_device(name)
        imported = opened.from_dlpack(tensor) if has_of(name, opened, "has_memory") else None
        if imported is not None:
            return cls(Copies(None, {name: bind_to_owner(imported)}), name)
        try:
            shared = np.from_dlpack(tensor)
        except (AttributeError, TypeError, BufferError, RuntimeError) as error:
            raise InvalidInputError(
                f"{type(tensor).__name__} cannot be exchanged by DLPack: {error}; copy it to host memory first"
            ) from error
        return cls.from_numpy(shared.copy(), device)

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Array, device_type: str = CPU, device_id: int = 0) -> Self:
        """Call `from_numpy` for a device named by type and number, as in ONNX Runtime."""
        return cls.from_numpy(numpy_obj, device_named(device_type, device_id))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = CPU, device_id: int = 0
    ) -> Self:
        """Return a value of zeros as the target of an output."""
        dtype = np.dtype(DTYPE_OF_ELEMENT_TYPE.get(element_type, element_type))
        return cls.from_numpy(np.zeros(tuple(shape), dtype), device_named(device_type, device_id))

    @property
    def device(self) -> str:
        return self._device

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.contents.dtype

    @property
    def nbytes(self) -> int:
        return self.contents.nbytes

    @property
    def contents(self) -> Copies | Array:
        """Contents to feed to a session; ClosedError if the value is closed."""
        contents = self._contents
        if contents is None:
            raise ClosedError("the device value is closed; create another one")
        return contents

    def numpy(self) -> Array:
        """Return a copy in host memory, owned by the caller."""
        contents = self.contents
        return contents.own_array() if isinstance(contents, Copies) else contents.copy()

    def update_inplace(self, np_arr: Array) -> None:
        """Replace the contents by an array of the same dtype and shape; otherwise raise InvalidInputError."""
        if (np_arr.dtype, np_arr.shape) != (self.dtype, self.contents.shape):
            raise InvalidInputError(
                f"the device value holds {self.dtype}{list(self.contents.shape)}, got "
                f"{np_arr.dtype}{list(np_arr.shape)}; create another device value for that"
            )
        self.replace(type(self).from_numpy(np_arr.copy(), self._device).contents)

    def replace(self, contents: Copies | Array) -> None:
        """Replace the contents; runs in progress keep the previous ones."""
        self._contents = contents

    def shape(self) -> list[int]:
        return list(self.contents.shape)

    def data_type(self) -> str:
        """Return the type in ONNX notation, such as `tensor(float)`."""
        return type_name(self.dtype.name)

    def element_type(self) -> int:
        """Return the element type code of `onnx.TensorProto`."""
        return ELEMENT_TYPE_OF_DTYPE[self.dtype.name]

    def device_name(self) -> str:
        return self._device

    def tensor_size_in_bytes(self) -> int:
        return self.nbytes

    def has_value(self) -> bool:
        return self._contents is not None

    def is_tensor(self) -> bool:
        return True

    def is_tensor_sequence(self) -> bool:
        return False

    def is_sparse_tensor(self) -> bool:
        return False

    def close(self) -> None:
        """Drop the contents; ClosedError if already closed."""
        _ = self.contents
        self._contents = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._contents = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the contents, read-only unless copied; ValueError if `copy=False` forbids a change of dtype."""
        array = self._array()
        is_other = dtype is not None and array.dtype != dtype
        if is_other and copy is False:
            raise ValueError(f"the value is {array.dtype}, which needs a copy to become {np.dtype(dtype)}; allow it")
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
        """Return a DLPack capsule with a copy of the contents, since some consumers write to read-only tensors.

        The copy is in device memory if the device supports DLPack. With `copy=False` the contents are shared and
        flagged as read-only; BufferError if that is impossible.
        """
        supports_read_only = max_version is not None and max_version >= _READ_ONLY_SINCE
        tensor = self._exchanged()
        if copy is not False and tensor is not None:
            return tensor.memory.dlpack(tensor.dtype, tensor.shape, stream=stream, dl_device=dl_device)
        if copy is not False:
            return exported(self.numpy(), stream, max_version, dl_device)
        if not supports_read_only or (isinstance(self.contents, Copies) and self.contents.devices):
            raise BufferError(f"the value on {self._device!r} cannot be shared without a copy; allow a copy")
        return exported(np.asarray(self), stream, max_version, dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the value's device as in DLPack if the device supports DLPack, otherwise (kDLCPU, 0)."""
        tensor = self._exchanged()
        return _HOST if tensor is None else tensor.memory.dlpack_device() or _HOST

    def __repr__(self) -> str:
        if self._contents is None:
            return "DeviceValue(closed)"
        return f"DeviceValue({self.dtype}{self.shape()} on {self._device})"

    def data_ptr(self) -> int:
        """Return the host address of the contents, valid while the value holds them."""
        array = self._array()
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
            self.replace(array)
        return int(array.ctypes.data)

    def as_sparse_tensor(self) -> Any:
        """Raise TypeError: the value is always dense."""
        raise TypeError("the value is a dense tensor, expected an OrtValue of a sparse tensor")

    def _get_c_value(self) -> Any:
        return self._ortvalue

    @property
    def _ortvalue(self) -> Any:
        from nnadapter.drivers.onnxruntime.values import native_value

        return native_value(self._array())

    @property
    def _session(self) -> None:
        """Return None; ONNX Runtime reads this attribute for the session that owns the memory."""

    def _exchanged(self) -> DeviceTensor | None:
        contents = self.contents
        tensor = contents.tensor_on(self._device) if isinstance(contents, Copies) else None
        return None if tensor is None or tensor.memory.dlpack_device() is None else tensor

    def _array(self) -> Array:
        contents = self.contents
        return contents.host() if isinstance(contents, Copies) else contents


def exported(array: Array, stream: Any, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None) -> Any:
    """Export an array by DLPack. numpy before 2.1 supports neither DLPack's versions nor its read-only flag."""
    try:
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)
    except TypeError:
        if dl_device not in (None, _HOST):
            raise BufferError(
                f"the value is in host memory, and DLPack device {dl_device} was requested; request device {_HOST}"
            ) from None
        return array.__dlpack__(stream=stream)


@memoize(_MOST_NAMES)
def device_named(device_type: str, device_id: int) -> str:
    """Return our name of an ONNX Runtime device: `fake_npu`, 1 -> `fake_npu:1`; `cuda` -> `ort:CUDA`."""
    from nnadapter.drivers.providers import device_name, provider_at

    provider = provider_at(canonical(device_type)) if not device_id else None
    if provider is not None:
        return device_name(provider)
    return canonical(f"{device_type}:{device_id}" if device_id else device_type)
