"""Tensors that live on a device and compute there, one operation at a time, with numpy's operators.

Tensors that live on a device and compute there, one operation at a time.

Source: numpy's `__array_ufunc__` (NEP 13) and `__array_function__` (NEP 18); Paddle's eager tensors on custom devices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.eager import functions
from nnadapter.eager.execution import cast, fall_back
from nnadapter.eager.functions import FUNCTIONS, NotMapped, get_item
from nnadapter.eager.place import Dtype, OnDevice, Place, common_place, contents, place_of
from nnadapter.eager.ufuncs import compute_ufunc, is_among, written
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array, freeze


class TensorOperators(OnDevice, NDArrayOperatorsMixin):
    """Python's operators by numpy's ufuncs. Source: numpy's `NDArrayOperatorsMixin`."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ()

    __iadd__ = NDArrayOperatorsMixin.__add__
    __isub__ = NDArrayOperatorsMixin.__sub__
    __imul__ = NDArrayOperatorsMixin.__mul__
    __imatmul__ = NDArrayOperatorsMixin.__matmul__
    __itruediv__ = NDArrayOperatorsMixin.__truediv__
    __ifloordiv__ = NDArrayOperatorsMixin.__floordiv__
    __imod__ = NDArrayOperatorsMixin.__mod__
    __ipow__ = NDArrayOperatorsMixin.__pow__
    __ilshift__ = NDArrayOperatorsMixin.__lshift__
    __irshift__ = NDArrayOperatorsMixin.__rshift__
    __iand__ = NDArrayOperatorsMixin.__and__
    __ixor__ = NDArrayOperatorsMixin.__xor__
    __ior__ = NDArrayOperatorsMixin.__or__

    def __eq__(self, other: object) -> Any:
        return super().__eq__(other) if _is_comparable(other) else self._unlike(self._array == other)

    def __ne__(self, other: object) -> Any:
        return super().__ne__(other) if _is_comparable(other) else self._unlike(self._array != other)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._array.item(), digits)

    def __format__(self, spec: str) -> str:
        return format(self._array.item(), spec) if spec else str(self)

    def _unlike(self, comparison: Any) -> Any:
        """What numpy says of something that no tensor holds."""
        return self.with_array(freeze(np.asarray(comparison)))


def _is_comparable(other: object) -> bool:
    """Whether a tensor can be made of it, or it is one."""
    if isinstance(other, (OnDevice, bool, int, float)):
        return True
    try:
        contents(other)
    except InvalidInputError:
        return False
    return True


_REDUCED = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
"""`ufunc.reduce` -> the reduction that it is."""


def tensor(data: Any, dtype: Any = None, device: str | Place | None = None) -> Tensor:
    """Return a tensor that lives on a device.

    Args:
        data: numbers, nested lists of them, an array, or another tensor, which is moved.
        dtype: the data type; if None, that of an array, int64 for Python's ints, float32 for its floats.
        device: where; the process's default device (`set_device`) if None, or that of `data`.

    Raises:
        InvalidInputError: `data` is nothing that tensors hold.
        DeviceNotFoundError, DeviceUnavailableError: there is no such device, or it cannot be used.
    """
    if isinstance(data, Tensor):
        moved = data if device is None else data.to(device)
        return moved if dtype is None else moved.astype(dtype)
    place = place_of(device)
    _check(place)
    return Tensor(contents(data, dtype), place)


class Tensor(TensorOperators):
    """Numbers on a device. Never changes; made by `nnadapter.tensor`."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._array.shape

    @property
    def dtype(self) -> Dtype:
        """Its data type."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._array.size

    @property
    def T(self) -> Tensor:  # noqa: N802  numpy's name
        """Axes reversed."""
        return self.transpose()

    def numpy(self) -> Array:
        """A copy in host memory, which the caller may write to."""
        return self._array.copy()

    def item(self) -> Any:
        """Its one element as Python's number."""
        return self._array.item()

    def tolist(self) -> Any:
        """Its elements in nested lists."""
        return self._array.tolist()

    def to(self, device: str | Place) -> Tensor:
        """The same on another device.

        Raises:
            DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as in `nnadapter.tensor`.
        """
        place = place_of(device)
        _check(place)
        return self if place == self._place else Tensor(self._array, place)

    def astype(self, dtype: Any) -> Tensor:
        """The same in another data type, cast on its device."""
        return self.with_array(cast(self._place, self._array, contents(0, dtype).dtype))

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements under other dimensions, of which one may be -1."""
        return self.with_array(functions.reshape(self._place, self._array, _axes(shape)))

    def transpose(self, *axes: Any) -> Tensor:
        """Axes in another order, reversed if none is given."""
        order = None if not axes or axes == (None,) else _axes(axes)
        return self.with_array(functions.transpose(self._place, self._array, order))

    def squeeze(self, axis: functions.Axes = None) -> Tensor:
        """Without axes of size 1: all of them, or those given."""
        return self.reshape(np.squeeze(self._array, axis).shape)

    def ravel(self) -> Tensor:
        """The elements in one axis."""
        return self.reshape(-1)

    def flatten(self) -> Tensor:
        """The elements in one axis."""
        return self.reshape(-1)

    def copy(self) -> Tensor:
        """The tensor itself: it never changes."""
        return self

    def any(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Whether an element over axes is not 0. The largest of booleans."""
        return self.astype("bool").astype("int32").max(axis, keepdims).astype("bool")

    def all(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Whether every element over axes is not 0. The smallest of booleans."""
        return self.astype("bool").astype("int32").min(axis, keepdims).astype("bool")

    def sum(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Sum over axes; keeps the data type."""
        return self.with_array(functions.reduce(self._place, "sum", self._array, axis, keepdims))

    def prod(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Product over axes; keeps the data type."""
        return self.with_array(functions.reduce(self._place, "prod", self._array, axis, keepdims))

    def mean(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Mean over axes; of integers, float32."""
        return self.with_array(functions.reduce(self._place, "mean", self._array, axis, keepdims))

    def max(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Largest element over axes."""
        return self.with_array(functions.reduce(self._place, "max", self._array, axis, keepdims))

    def min(self, axis: functions.Axes = None, keepdims: bool = False) -> Tensor:
        """Smallest element over axes."""
        return self.with_array(functions.reduce(self._place, "min", self._array, axis, keepdims))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Where the first largest element stands."""
        return self.with_array(functions.arg_extreme(self._place, "argmax", self._array, axis, keepdims))

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Where the first smallest element stands."""
        return self.with_array(functions.arg_extreme(self._place, "argmin", self._array, axis, keepdims))

    def __getitem__(self, key: Any) -> Tensor:
        """Elements, by numpy's rules; what there is no operation for is taken on the host."""
        plain = tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)
        elements = get_item(self._place, self._array, plain)
        if elements is None:
            self._say_not_mapped("indexing with such a key")
            elements = freeze(np.asarray(self._array[plain]))
        return self.with_array(elements)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("a tensor never changes; make another one, for example with numpy.where")

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._array)

    def __int__(self) -> int:
        return int(self._array.item())

    def __float__(self) -> float:
        return float(self._array.item())

    def __index__(self) -> int:
        return self._array.__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False and dtype is not None and self._array.dtype != dtype:
            raise ValueError("another data type takes a copy")
        return self._array.astype(dtype) if dtype is not None else self._array.copy() if copy else self._array

    def __repr__(self) -> str:
        """As in `Tensor(shape=[2], dtype=float32, place=Place(fake_npu:0), [1., 2.])`."""
        shown = np.array2string(self._array, separator=", ")
        between = "\n       " if "\n" in shown else " "
        shown = shown.replace("\n", "\n       ")
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype.name}, place={self._place!r},{between}{shown})"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **details: Any) -> Any:
        outs = details.get("out", ())
        _check_outs(outs)
        if outs and "where" not in details:
            plain = {name: argument for name, argument in details.items() if name not in ("out", "casting")}
            results = getattr(ufunc, method)(*inputs, **plain)
            return written(results, outs, details.get("casting", "same_kind"))
        place = common_place([operand.place for operand in inputs if isinstance(operand, Tensor)] or [self._place])
        if method == "__call__" and not details:
            array = compute_ufunc(place, ufunc, [_operand(operand) for operand in inputs])
            if array is not None:
                return Tensor(array, place)
        if method == "reduce" and ufunc.__name__ in _REDUCED and details.keys() <= {"axis", "keepdims"}:
            axis, keepdims = details.get("axis", 0), bool(details.get("keepdims", False))
            return Tensor(functions.reduce(place, _REDUCED[ufunc.__name__], inputs[0]._array, axis, keepdims), place)
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        return self._on_host(f"numpy.{ufunc.__name__}", function, inputs, details)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        out = kwargs.get("out")
        _check_outs(out if isinstance(out, tuple) else (out,))
        mapped = FUNCTIONS.get(func)
        if mapped is not None and _takes(mapped, args, kwargs):
            outcome = mapped(*args, **kwargs)
            if outcome is not NotMapped:
                return outcome
        return self._on_host(f"numpy.{getattr(func, '__name__', func)}", func, args, kwargs)

    def _on_host(
        self, function_name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What numpy makes of a function that there is no operation for; arrays that it gives live here again."""
        self._say_not_mapped(function_name)
        result = function(*_on_host(args), **_on_host(dict(kwargs)))
        if is_among(result, (*args, *kwargs.values())):
            return result  # an array of the person's own, written to
        if isinstance(result, (tuple, list)):
            return type(result)(map(self._back, result)) if type(result) in (tuple, list) else result
        return self._back(result)

    def _say_not_mapped(self, operation: str) -> None:
        if not self._place.is_host:
            fall_back(self._place.device, operation, "no operation of the adapter IR is mapped to it")

    def _back(self, result: Any) -> Any:
        is_numeric = isinstance(result, (np.ndarray, np.generic)) and result.dtype.kind in "biuf"
        return self.with_array(freeze(np.array(result))) if is_numeric else result


def _check_outs(outs: Sequence[Any]) -> None:
    if any(isinstance(out, Tensor) for out in outs):
        raise TypeError("a tensor never changes, so it cannot be an out; take the result instead")


def _operand(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument._array
    return argument if type(argument) in (bool, int, float) else contents(argument)


def _on_host(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument._array
    if isinstance(argument, (tuple, list)):
        return type(argument)(map(_on_host, argument))
    return {name: _on_host(value) for name, value in argument.items()} if isinstance(argument, dict) else argument


def _plain(key: Any) -> Any:
    if isinstance(key, Tensor):
        return key._array
    return np.asarray(key, None if key else np.int64) if isinstance(key, list) else key


def _axes(axes: tuple[Any, ...]) -> tuple[int, ...]:
    axis_spec = axes[0] if len(axes) == 1 else axes
    return tuple(axis_spec) if isinstance(axis_spec, (tuple, list)) else (int(axis_spec),)


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a row of the table has all of these arguments, and a tensor where it wants one."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _check(place: Place) -> None:
    """Raise what says why tensors cannot live there: there is no such device, or it cannot be used."""
    if place.is_host:
        return
    from nnadapter.drivers.registry import open_device

    open_device(place.device)
