"""Tensors with numpy's operators that compute on a device, one operation at a time.

Source: numpy's NEP 13 and NEP 18; Paddle's eager tensors on custom devices.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.eager import functions
from nnadapter.eager.execution import OnDevice, Place, common_place, fall_back, place_of
from nnadapter.eager.functions import FUNCTIONS, Axes, NotMapped, contents
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array, freeze


def tensor(data: Any, dtype: Any = None, device: str | Place | None = None) -> Tensor:
    """Return a tensor on a device.

    Args:
        data: numbers, nested lists, an array, or a tensor to move.
        dtype: by default an array's own, int64 for Python ints, float32 for Python floats.
        device: by default a tensor's own, or the process's default (`set_device`).

    Raises:
        InvalidInputError: `data` cannot become a tensor.
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
    """
    if isinstance(data, Tensor):
        moved = data if device is None else data.to(device)
        return moved if dtype is None else moved.astype(dtype)
    place = place_of(device)
    return Tensor(contents(data, dtype), place)


def _method(function: Callable[..., Any], name: str, documentation: str) -> Callable[..., Any]:
    def method(self: Tensor, axis: Axes = None, keepdims: bool = False) -> Any:
        return function(self, name, axis, keepdims)

    method.__doc__, method.__name__ = documentation, name
    return method


def _of_item(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments: convert(self.item(), *arguments)


class TensorOperators(OnDevice, NDArrayOperatorsMixin):
    """Operators and numpy functions. Operators are ufuncs, also those in place."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._compare("ne", other)

    def _compare(self, name: str, other: object) -> Any:
        """Compare by a ufunc; anything that cannot become a tensor equals no element."""
        try:
            return getattr(NDArrayOperatorsMixin, f"__{name}__")(self, other)
        except InvalidInputError:
            if isinstance(other, OnDevice):
                raise
            return self._back(np.asarray(getattr(operator, name)(self._array, other)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **details: Any) -> Any:
        outs = details.get("out", ())
        _refuse_outs(outs)
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        if outs and "where" not in details:
            plain = {name: argument for name, argument in details.items() if name not in ("out", "casting")}
            return _write(function(*inputs, **plain), outs, details.get("casting", "same_kind"))
        like = common_place(inputs)
        like = self if like is None else like
        if method == "__call__" and not details:
            array = functions.compute_ufunc(like, ufunc, inputs)
            if array is not None:
                return like.with_array(array)
        return self._compute_on_host(f"numpy.{ufunc.__name__}", function, inputs, details)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        out = kwargs.get("out")
        _refuse_outs(out if isinstance(out, tuple) else (out,))
        row = FUNCTIONS.get(func)
        if row is not None and _takes(row, args, kwargs):
            result = row(*args, **kwargs)
            if result is not NotMapped:
                return result
        return self._compute_on_host(f"numpy.{getattr(func, '__name__', func)}", func, args, kwargs)

    def _compute_on_host(
        self, function_name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Compute with numpy; new arrays become tensors here."""
        self._report_unmapped(function_name)
        result = function(*_arrays(args), **_arrays(dict(kwargs)))
        arguments = [*args, *kwargs.values()]
        arguments += [element for argument in arguments if isinstance(argument, tuple) for element in argument]
        if any(result is argument for argument in arguments):
            return result  # a caller's array
        if isinstance(result, (tuple, list)):
            return type(result)(map(self._back, result)) if type(result) in (tuple, list) else result
        return self._back(result)

    def _report_unmapped(self, operation: str) -> None:
        if not self._place.is_host:
            fall_back(self._place.device, operation, "it maps to no operation of the adapter IR")

    def _back(self, result: Any) -> Any:
        is_numeric = isinstance(result, (np.ndarray, np.generic)) and result.dtype.kind in "biuf"
        return self.with_array(freeze(np.array(result))) if is_numeric else result


class Tensor(TensorOperators, OnDevice):
    """Immutable array on a device; created by `nnadapter.tensor`."""

    __slots__ = ()

    shape = property(attrgetter("_array.shape"), doc="Its dimensions.")
    dtype = property(attrgetter("_array.dtype"), doc="Its data type.")
    ndim = property(attrgetter("_array.ndim"), doc="Number of dimensions.")
    size = property(attrgetter("_array.size"), doc="Number of elements.")
    T = property(methodcaller("transpose"), doc="Axes reversed.")

    def numpy(self) -> Array:
        """Return a writable copy in host memory."""
        return self._array.copy()

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self._array.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self._array.tolist()

    def to(self, device: str | Place) -> Tensor:
        """Return the tensor on another device; errors as in `nnadapter.tensor`."""
        place = place_of(device)
        return self if place == self._place else Tensor(self._array, place)

    def astype(self, dtype: Any) -> Tensor:
        """Return the tensor in another data type."""
        return functions.cast(self, contents(0, dtype).dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements with another shape; one size may be -1."""
        return functions.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """Return the tensor with permuted axes, by default reversed."""
        return functions.reordered(self, np.transpose, axes[0] if len(axes) == 1 else axes or None)

    def squeeze(self, axis: Axes = None) -> Tensor:
        """Return the tensor without axes of size 1: these or all."""
        return self.reshape(np.squeeze(self._array, axis).shape)

    def ravel(self) -> Tensor:
        """Return the elements as one axis."""
        return self.reshape(-1)

    flatten = ravel

    def copy(self) -> Tensor:
        """Return the tensor itself, which is immutable."""
        return self

    def any(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Check for nonzero elements along axes."""
        return self.astype("bool").astype("int32").max(axis, keepdims).astype("bool")  # type: ignore[no-any-return]

    def all(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Check for only nonzero elements along axes."""
        return self.astype("bool").astype("int32").min(axis, keepdims).astype("bool")  # type: ignore[no-any-return]

    sum = _method(functions.reduce, "sum", "Return the sum over axes; it keeps the data type.")
    prod = _method(functions.reduce, "prod", "Return the product over axes; it keeps the data type.")
    mean = _method(functions.reduce, "mean", "Return the mean over axes; of integers, float32.")
    max = _method(functions.reduce, "max", "Return the largest element over axes.")
    min = _method(functions.reduce, "min", "Return the smallest element over axes.")
    argmax = _method(functions.arg_extreme, "argmax", "Return the position of the first largest element.")
    argmin = _method(functions.arg_extreme, "argmin", "Return the position of the first smallest element.")

    def __getitem__(self, key: Any) -> Tensor:
        """Return elements by numpy's rules, from the host if the key maps to no operation."""
        plain = tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)
        elements = functions.get_item(self, plain)
        if elements is None:
            self._report_unmapped("indexing with such a key")
            elements = self.with_array(freeze(np.asarray(self._array[plain])))
        return elements

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("tensors are immutable; create another one, for example with numpy.where")

    __int__, __float__, __round__ = _of_item(int), _of_item(float), _of_item(round)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._array)

    def __index__(self) -> int:
        return self._array.__index__()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False and dtype is not None and self._array.dtype != dtype:
            raise ValueError("another data type requires a copy")
        return self._array.astype(dtype) if dtype is not None else self._array.copy() if copy else self._array

    def __repr__(self) -> str:
        numbers = np.array2string(self._array, separator=", ")
        between = "\n       " if "\n" in numbers else " "
        numbers = numbers.replace("\n", "\n       ")
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype.name}, place={self._place!r},{between}{numbers})"


_OPERATORS = "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or"
for _name in _OPERATORS.split():
    setattr(Tensor, f"__i{_name}__", getattr(NDArrayOperatorsMixin, f"__{_name}__"))


def _refuse_outs(outs: Sequence[Any]) -> None:
    if any(isinstance(out, Tensor) for out in outs):
        raise TypeError("tensors are immutable, so a tensor cannot be an out; use the result instead")


def _write(output: Any, outs: Sequence[Any], casting: Any) -> Any:
    """Copy results into `outs` and return those; without an out, return the result."""
    written = []
    for result, out in zip(output if isinstance(output, tuple) else (output,), outs, strict=True):
        if out is not None:
            np.copyto(out, np.asarray(result), casting=casting)
        written.append(result if out is None else out)
    return tuple(written) if isinstance(output, tuple) else written[0]


def _arrays(argument: Any) -> Any:
    """Replace tensors by arrays, also in tuples, lists and dicts."""
    if isinstance(argument, Tensor):
        return argument._array
    if isinstance(argument, (tuple, list)):
        return type(argument)(map(_arrays, argument))
    return {name: _arrays(value) for name, value in argument.items()} if isinstance(argument, dict) else argument


def _plain(key: Any) -> Any:
    if isinstance(key, Tensor):
        return key._array
    return np.asarray(key, None if key else np.int64) if isinstance(key, list) else key


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    with suppress(TypeError):
        return bool(inspect.signature(function).bind(*args, **kwargs))
    return False
