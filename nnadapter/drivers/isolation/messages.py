"""What two processes say to each other, as bytes.

Models arrive as they left: constants are read-only again, and what a model has worked out about itself stays behind.
Large arrays stand beside the message, in memory that is shared, and are not copied out of it.

The process of a device does not decide what is run here: of what it sends, only plain values are made, and those
classes of ours that hold nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.errors import DriverError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Operand, array_type_of
from nnadapter.process.cache import remembered
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE

_ASIDE_BYTES = 1 << 16
"""From this size on an array stands beside its message."""
_PLAIN = {
    "builtins": {"tuple", "list", "dict", "frozenset", "set", "bytearray", "complex"},
    "types": {"MappingProxyType"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "ml_dtypes": {*DTYPE_OF_ELEMENT_TYPE.values()},
}
"""What may be made of what a device's process sends, beside classes of ours."""
_OURS = ("nnadapter.drivers.", "nnadapter.ir.", "partition.")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # the module's own name for the hook
        """See `pickle.Pickler.reducer_override`."""
        if type(value) is MappingProxyType:
            return MappingProxyType, (dict(value),)
        if type(value) is Model:
            return Model, (value.operands, value.operations, value.inputs, value.outputs, value.varying)
        if type(value) is Operand:
            return _operand, (value.name, value.type, value.lifetime, value.value)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """See `pickle.Unpickler.find_class`."""
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        if module.startswith(_OURS) and "." not in name:
            class_ = super().find_class(module, name)
            if isinstance(class_, type) and (is_dataclass(class_) or issubclass(class_, Enum)):
                return class_
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def written(message: object, aside: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return a message as bytes.

    Args:
        message: what is said.
        aside: takes what is large and stands beside it; None where all of it is in the bytes.

    Raises:
        Exception: it holds something that cannot be pickled.
    """
    contents = io.BytesIO()

    def takes(buffer: pickle.PickleBuffer) -> bool:
        if aside is None or buffer.raw().nbytes < _ASIDE_BYTES:
            return True
        aside(buffer)
        return False

    _Pickler(contents, protocol=5, buffer_callback=takes).dump(message)
    return contents.getvalue()


def read(contents: bytes, aside: Sequence[memoryview] = ()) -> Any:
    """Return what the process that opened this one said."""
    return pickle.loads(contents, buffers=aside)


def read_answer(contents: bytes, device: str) -> Any:
    """Return what the process of a device said.

    Raises:
        DriverError: it is nothing that such a process says.
    """
    try:
        return _Unpickler(io.BytesIO(contents)).load()
    except Exception as error:
        raise DriverError(
            f"the process of device {device!r} gave no answer that can be read: {type(error).__name__}: {error}; "
            "report it to the vendor",
            device=device,
        ) from error


@remembered(64)
def type_named(name: str) -> np.dtype[Any]:
    """Return the type of arrays of a name.

    Raises:
        ValueError: there is none whose elements are numbers.
    """
    try:
        dtype = array_type_of(name)
    except TypeError as error:
        raise ValueError(f"{name!r} is no data type") from error
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None or dtype.name != name:
        raise ValueError(f"{name!r} is no data type of tensors")
    return dtype


def _operand(name: str, type_: Any, lifetime: Any, value: Any) -> Operand:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return Operand(name, type_, lifetime, value)
