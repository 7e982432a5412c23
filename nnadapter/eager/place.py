"""Place and data type of eager tensors.

Data types of results.

1. Tensors with tensors: numpy's promotion; but an integer or boolean one with a floating one takes the floating type,
   so that float64, which accelerators seldom have, comes about only where somebody asked for it.
2. Python's numbers take the tensors' type; an int with booleans is int64, a float with integers the default float32.
3. What numpy makes floating of integers (`/`, `exp`, `mean`) is float32.
4. Sums, products and extremes keep the data type; but sums and products of booleans are int64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from nnadapter.drivers.selection import CPU, canonical
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array, DataType, freeze
from nnadapter.options import default_devices

DEFAULT_FLOAT = np.dtype(np.float32)
"""What Python's floats are, and what integers become where a result is floating."""
_DEFAULT_INTEGER = np.dtype(np.int64)
_DTYPE_NAMES = frozenset(map(str, DataType))

Dtype = np.dtype[Any]

_NARROW: Mapping[Dtype, tuple[int, int]] = MappingProxyType(
    {DataType.INT4.array_type: (-8, 7), DataType.UINT4.array_type: (0, 15)}
)
"""Smallest and largest number of the integer types that are not numpy's own."""


def contents(data: object, dtype: object = None) -> Array:
    """Return what a person gives for a tensor as an array of its own, which nobody can write to.

    Python's floats become float32; arrays keep their data type.

    Raises:
        InvalidInputError: it is no array of numbers or booleans.
    """
    try:
        if dtype is not None:
            is_name = isinstance(dtype, str) and dtype in _DTYPE_NAMES
            numpy_dtype = DataType(dtype).array_type if is_name else np.dtype(dtype)  # type: ignore[arg-type,call-overload]
            array = np.array(data, dtype=numpy_dtype)
            if numpy_dtype in _NARROW and not hasattr(data, "dtype"):
                _check_range(np.array(data), numpy_dtype)
        else:
            array = np.array(data)
            if not hasattr(data, "dtype") and array.dtype == np.float64 and not _holds_arrays(data):
                array = array.astype(DEFAULT_FLOAT)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"a tensor is made of numbers: {' '.join(str(error).split())}; got {data!r}") from error
    if array.dtype.name not in _DTYPE_NAMES:
        raise InvalidInputError(f"a tensor holds numbers or booleans, got {array.dtype}; expected one of {_listed()}")
    return freeze(array)


def _check_range(array: Array, dtype: Dtype) -> None:
    """Refuse what numpy itself refuses for its own integer types: ml_dtypes' wrap around."""
    low, high = _NARROW[dtype]
    beyond = array[(array < low) | (array > high)]
    if beyond.size:
        raise OverflowError(f"{beyond[0]} is out of bounds for {dtype.name}")


def _holds_arrays(data: object) -> bool:
    return isinstance(data, (list, tuple)) and any(hasattr(item, "dtype") or _holds_arrays(item) for item in data)


def _listed() -> str:
    return ", ".join(map(str, DataType))


def is_floating(dtype: Dtype) -> bool:
    """Whether it is a floating-point type, ml_dtypes' included."""
    return dtype.name in _DTYPE_NAMES and DataType(dtype.name).is_floating


def common(dtypes: Sequence[Dtype], numbers: Sequence[object] = ()) -> Dtype:
    """Return the data type in which tensors, and Python's numbers with them, are computed."""
    floating = [dtype for dtype in dtypes if is_floating(dtype)]
    chosen = floating or list(dtypes)
    common_dtype = chosen[0]
    for dtype in chosen[1:]:
        common_dtype = np.promote_types(common_dtype, dtype)
    kinds = {type(number) for number in numbers}
    if float in kinds and not is_floating(common_dtype):
        return DEFAULT_FLOAT
    return _DEFAULT_INTEGER if int in kinds and common_dtype == np.bool_ else common_dtype


def floating(dtype: Dtype) -> Dtype:
    """The type of what is floating whatever it is made of."""
    return dtype if is_floating(dtype) else DEFAULT_FLOAT


def summed(dtype: Dtype) -> Dtype:
    """The type of a sum."""
    return _DEFAULT_INTEGER if dtype == np.bool_ else dtype


@dataclass(frozen=True, slots=True)
class Place:
    """A device, by its name: `fake_npu`, or `fake_npu:1` where a driver has several. Source: Paddle's Place."""

    device: str

    @property
    def is_host(self) -> bool:
        """It is the host, where numpy computes."""
        return self.device == CPU

    def __repr__(self) -> str:
        """As in `Place(fake_npu:0)`."""
        return f"Place({self.device if ':' in self.device else f'{self.device}:0'})"


def place_of(device: str | Place | None) -> Place:
    """Return the place that a person means; None is the process's default device (`nnadapter.set_device`).

    Raises:
        InvalidOptionError: it is no name of a device.
    """
    if isinstance(device, Place):
        return device
    return Place(canonical(default_devices()[0] if device is None else device))


def common_place(places: list[Place]) -> Place:
    """Return the one place of several tensors.

    Raises:
        InvalidInputError: they live in different ones.
    """
    first = places[0]
    for other in places:
        if other != first:
            raise InvalidInputError(
                f"one tensor lives on {first.device!r}, another on {other.device!r}; an operation computes on one "
                f"device, so move one with .to({first.device!r})"
            )
    return first


class OnDevice:
    """Contents in a place.

    Args:
        array: read-only.
        place: where they live.
    """

    __slots__ = ("_array", "_place")

    def __init__(self, array: Array, place: Place) -> None:
        self._array = array
        self._place = place

    @property
    def place(self) -> Place:
        """Where it lives."""
        return self._place

    @property
    def array(self) -> Array:
        """The contents, read-only, not copied."""
        return self._array

    def with_array(self, array: Array) -> Self:
        """Another one in the same place."""
        return type(self)(array, self._place)


def joined(operands: Sequence[Any]) -> tuple[OnDevice, list[Array]]:
    """Return the first that has a place of what an operation is given, and everything as arrays.

    Raises:
        InvalidInputError: they are of two devices, or something is no array of numbers.
    """
    placed = [operand for operand in operands if isinstance(operand, OnDevice)]
    common_place([tensor.place for tensor in placed])
    return placed[0], [operand.array if isinstance(operand, OnDevice) else contents(operand) for operand in operands]
