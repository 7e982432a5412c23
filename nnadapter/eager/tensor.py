"""Tensors with numpy's operators and functions that compute on a device, one operation at a time.

Source: numpy's NEP 13 and NEP 18; Paddle's eager tensors on custom devices.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.eager.execution import OnDevice, Place, apply, common_place, fall_back, place_of
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array, DataType, freeze
from nnadapter.ir.operand_checks import integer_range

Axes = int | Sequence[int] | None
Dtype = np.dtype[Any]
Placed = TypeVar("Placed", bound=OnDevice)


_DEFAULT_FLOAT = np.dtype(np.float32)
"""dtype of Python floats, and of floating-point results of integer operands."""
_DTYPE_NAMES = frozenset(map(str, DataType))
_FLOATING_NAMES = frozenset(str(dtype) for dtype in DataType if dtype.is_floating)

_NARROW = frozenset({"int4", "uint4"})
"""Integer types of ml_dtypes, whose conversions wrap around silently."""


def contents(data: object, dtype: object = None) -> Array:
    """Return a new read-only array, float32 for Python floats; raise InvalidInputError for data without numbers."""
    try:
        is_name = isinstance(dtype, str) and dtype in _DTYPE_NAMES
        array = np.array(data, DataType(dtype).array_type if is_name else dtype)  # type: ignore[arg-type,call-overload]
        if dtype is None and array.dtype == np.float64 and not _has_arrays(data):
            array = array.astype(_DEFAULT_FLOAT)
        if array.dtype.name in _NARROW and not hasattr(data, "dtype"):
            low, high = integer_range(DataType(array.dtype.name))
            if ((wide := np.array(data)) < low).any() or (wide > high).any():
                raise OverflowError(f"a number is out of bounds for {array.dtype.name}")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"a tensor needs numbers: {' '.join(str(error).split())}; got {data!r}") from error
    if array.dtype.name not in _DTYPE_NAMES:
        listed = ", ".join(map(str, DataType))
        raise InvalidInputError(f"a tensor holds numbers or booleans, got {array.dtype}; expected one of {listed}")
    return freeze(array)


def _has_arrays(data: object) -> bool:
    return hasattr(data, "dtype") or (isinstance(data, (list, tuple)) and any(map(_has_arrays, data)))


def _common(dtypes: Sequence[Dtype], numbers: Iterable[object] = ()) -> Dtype:
    floating_dtypes = [dtype for dtype in dtypes if dtype.name in _FLOATING_NAMES]
    common_dtype = functools.reduce(np.promote_types, floating_dtypes or dtypes)
    kinds = set(map(type, numbers))
    if float in kinds:
        return _floating(common_dtype)
    return _summed(common_dtype) if int in kinds else common_dtype


def _floating(dtype: Dtype) -> Dtype:
    return dtype if dtype.name in _FLOATING_NAMES else _DEFAULT_FLOAT


def _summed(dtype: Dtype) -> Dtype:
    return np.dtype(np.int64) if dtype == np.bool_ else dtype


class UfuncRow(NamedTuple):
    """Row of the ufunc table: operation, equivalent ONNX op for custom kernels, and rule for the data type."""

    type: str
    op_type: str
    rule: str


_UFUNCS = {
    "same": "add ADD, subtract SUB, multiply MUL, power POW, maximum MAX, minimum MIN, remainder MOD, "
    "floor_divide FLOOR_DIV, negative NEG, absolute ABS, sign SIGN, square SQUARE, equal EQUAL, not_equal NOT_EQUAL, "
    "greater GREATER, greater_equal GREATER_EQUAL, less LESS, less_equal LESS_EQUAL, bitwise_and BITWISE_AND, "
    "bitwise_or BITWISE_OR, bitwise_xor BITWISE_XOR, invert BITWISE_NOT, matmul MAT_MUL",
    "floating": "true_divide DIV, divide DIV, exp EXP, log LOG, sqrt SQRT, sin SIN, cos COS, tan TAN, sinh SINH, "
    "cosh COSH, tanh TANH, arcsin ASIN, arccos ACOS, arctan ATAN, arcsinh ASINH, arccosh ACOSH, arctanh ATANH, "
    "reciprocal RECIPROCAL, floor FLOOR, ceil CEIL, rint ROUND, isnan IS_NAN",
    "boolean": "logical_and AND, logical_or OR, logical_xor XOR, logical_not NOT",
}
_OP_TYPES = {"GREATER_EQUAL": "GreaterOrEqual", "IS_NAN": "IsNaN", "LESS_EQUAL": "LessOrEqual"}
"""Operation -> ONNX op type, if it is not the operation's name in title case."""
UFUNCS: Mapping[str, UfuncRow] = MappingProxyType(
    {
        name: UfuncRow(type_, _OP_TYPES.get(type_, type_.title().replace("_", "")), rule)
        for rule, rows in _UFUNCS.items()
        for name, type_ in map(str.split, rows.split(","))
    }
)
_ON_BOOLEANS: Mapping[str, str] = MappingProxyType(
    {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "invert": "logical_not"}
)
_COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})


def _compute_ufunc(like: OnDevice, ufunc: np.ufunc, inputs: Sequence[Any]) -> Array | None:
    name = ufunc.__name__
    if name not in UFUNCS:
        return None
    operands = [_operand(operand) for operand in inputs]
    dtypes = [operand.dtype for operand in operands if isinstance(operand, np.ndarray)]
    numbers = [operand for operand in operands if not isinstance(operand, np.ndarray)]
    if name in _ON_BOOLEANS and all(map(np.dtype(bool).__eq__, dtypes)) and set(map(type, numbers)) <= {bool}:
        name = _ON_BOOLEANS[name]
    type_, op_type, rule = UFUNCS[name]
    dtype = np.dtype(bool) if rule == "boolean" else _common(dtypes, numbers)
    dtype = _floating(dtype) if rule == "floating" else dtype
    if name in _COMPARISONS and not _can_represent(dtype, numbers):
        # elements do not matter, so no device is needed
        return freeze(np.asarray(ufunc(*operands)))
    arrays = [
        cast(like.with_array(operand), dtype).array if isinstance(operand, np.ndarray) else np.asarray(operand, dtype)
        for operand in operands
    ]
    if name == "power" and dtype.kind in "iu" and (arrays[1] < 0).any():
        raise ValueError("Integers to negative integer powers are not allowed.")  # numpy's message
    if name == "matmul" and min(array.ndim for array in arrays) == 0:
        return None  # numpy raises its error

    def on_host(*values: Array) -> Array:
        array = np.asarray(getattr(np, name)(*values))
        return array if array.dtype == np.bool_ else array.astype(dtype)

    return apply(like.place, type_, arrays, on_host, {}, op_type)


def _operand(argument: Any) -> Any:
    if isinstance(argument, OnDevice):
        return argument.array
    return argument if type(argument) in (bool, int, float) else contents(argument)


def _can_represent(dtype: Dtype, numbers: Sequence[object]) -> bool:
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return limits is None or all(limits.min <= number <= limits.max for number in numbers if isinstance(number, int))


def cast(a: Placed, dtype: Dtype) -> Placed:
    """Return a tensor converted on its device."""
    return a if a.array.dtype == dtype else _apply(a, "CAST", lambda operand: operand.astype(dtype), to=dtype.name)


def _apply(
    a: Placed, type_: str, on_host: Callable[..., Any], *others: Array, op_type: str = "", **attributes: Any
) -> Placed:
    return a.with_array(apply(a.place, type_, [a.array, *others], on_host, attributes, op_type))


def _tensors(operands: Sequence[Any]) -> list[Any]:
    like: Any = common_place(operands)
    return [operand if isinstance(operand, OnDevice) else like.with_array(contents(operand)) for operand in operands]


def _all_axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    listed_axes = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    np.flip(np.empty((1,) * rank), listed_axes)
    return tuple(axis % rank for axis in listed_axes)


def _along(a: Placed, axis: int | None) -> tuple[Placed, int]:
    return (reshape(a, -1), 0) if axis is None else (a, _all_axes(axis, a.array.ndim)[0])


def reshape(a: Placed, /, shape: Any) -> Placed:
    """Return the elements with another shape; one size may be -1."""
    target_shape = a.array.reshape(shape).shape  # resolves -1, raises numpy's errors
    return _apply(a, "RESHAPE", lambda operand: operand.reshape(target_shape), shape=target_shape)


def _reordered(a: Placed, function: Callable[..., Any], *axes: Any) -> Placed:
    order = function(np.empty(range(a.array.ndim)), *axes).shape
    return _apply(a, "TRANSPOSE", lambda operand: operand.transpose(order), perm=order)


def _broadcast_to(array: Placed, shape: Any) -> Placed:
    target_shape = np.broadcast_to(array.array, shape).shape
    return _apply(array, "EXPAND", lambda operand: np.broadcast_to(operand, target_shape), shape=target_shape)


def _concatenate(arrays: Any, /, axis: Any = 0) -> Any:
    tensors = _tensors(list(arrays))
    dtype = _common([operand.array.dtype for operand in tensors])
    (first, along), *others = [_along(cast(operand, dtype), axis) for operand in tensors]
    parts = [operand.array for operand, _ in others]
    return _apply(first, "CONCAT", lambda *operands: np.concatenate(operands, along), *parts, axis=along)


def _stack(arrays: Any, axis: int = 0) -> Any:
    tensors = _tensors(list(arrays))
    if len({operand.array.shape for operand in tensors}) > 1:
        raise ValueError("all stacked tensors must have the same shape")
    shape = np.expand_dims(tensors[0].array, axis).shape
    return _concatenate([reshape(operand, shape) for operand in tensors], axis)


def _where(condition: Any, /, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        return NotImplemented
    chosen, first, other = _tensors([condition, x, y])
    dtype = _common([first.array.dtype, other.array.dtype])
    operands = cast(first, dtype).array, cast(other, dtype).array
    return _apply(cast(chosen, np.dtype(bool)), "WHERE", np.where, *operands, op_type="Where")


def _take(a: Placed, indices: Any, axis: int | None = None) -> Placed:
    (operand, along), numbers = _along(a, axis), _tensors([a, indices])[1].array
    size = operand.array.shape[along]
    if numbers.size and not -size <= int(numbers.min()) <= int(numbers.max()) < size:
        raise IndexError(f"an index is out of bounds for axis {along} of size {size}")
    numbers = np.asarray(np.where(numbers < 0, numbers + size, numbers), np.int64)
    return _apply(operand, "GATHER", lambda values, at: np.take(values, at, along), numbers, axis=along)


def _clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    if not all(limit is None or type(limit) in (int, float) for limit in (a_min, a_max)):
        return NotImplemented
    bounds = [limit for limit in (a_min, a_max) if limit is not None]
    if any(float(bound) != bound for bound in bounds):
        # NaN, or an int beyond float bounds
        raised = a if a_min is None else np.maximum(a, a_min)
        return raised if a_max is None else np.minimum(raised, a_max)
    operand = cast(a, _common([a.dtype], bounds))
    low, high = -np.inf if a_min is None else float(a_min), np.inf if a_max is None else float(a_max)
    return _apply(operand, "CLIP", lambda values: np.clip(values, a_min, a_max).astype(values.dtype), min=low, max=high)


def _dot(a: Any, b: Any) -> Any:
    ranks = [operand.array.ndim for operand in _tensors([a, b])]
    if min(ranks) == 0:
        return np.multiply(a, b)
    return np.matmul(a, b) if max(ranks) <= 2 else NotImplemented


def _cumsum(a: Any, axis: Any = None) -> Any:
    flat, along = _along(a, axis)
    dtype = _summed(a.dtype)
    return _apply(cast(flat, dtype), "CUM_SUM", lambda values: np.cumsum(values, along).astype(dtype), axis=along)


def _reduce(a: Placed, name: str, axis: Axes = None, keepdims: bool = False) -> Placed:
    axes = _all_axes(range(a.array.ndim) if axis is None else axis, a.array.ndim)
    dtype = a.array.dtype
    dtype = _floating(dtype) if name == "mean" else dtype if name in ("max", "min") else _summed(dtype)
    operand, function = cast(a, dtype), getattr(np, name)
    if not axes:
        return operand

    def on_host(values: Array) -> Array:
        return np.asarray(function(values, axis=axes, keepdims=keepdims)).astype(dtype)

    return _apply(operand, f"REDUCE_{name.upper()}", on_host, axes=tuple(sorted(axes)), keepdims=keepdims)


def _truth(a: Placed, name: str, axis: Axes = None, keepdims: bool = False) -> Placed:
    numbers = cast(cast(a, np.dtype(bool)), np.dtype(np.int32))
    return cast(_reduce(numbers, {"any": "max", "all": "min"}[name], axis, keepdims), np.dtype(bool))


def _arg_extreme(a: Placed, name: str, axis: int | None = None, keepdims: bool = False) -> Placed:
    flat, along = _along(a, axis)
    options: dict[str, Any] = {"axis": along, "keepdims": keepdims and axis is not None}
    type_ = {"argmax": "ARG_MAX", "argmin": "ARG_MIN"}[name]
    indices = _apply(flat, type_, functools.partial(getattr(np, name), **options), **options)
    return reshape(indices, (1,) * a.array.ndim) if keepdims and axis is None else indices


def _get_item(a: Placed, key: Any) -> Placed | None:
    shape, keys = a.array.shape, key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], np.ndarray) and keys[0].dtype.kind in "iu" and shape:
        return _take(a, keys[0], 0)
    basic = (int, np.integer, slice, type(None), type(Ellipsis))
    if any(isinstance(key, bool) or not isinstance(key, basic) for key in keys):
        return None
    result_shape = a.array[keys].shape  # a view; raises numpy's errors
    axis_keys = [key for key in keys if key is not None]
    at = axis_keys.index(Ellipsis) if Ellipsis in axis_keys else len(axis_keys)
    axis_keys[at : at + 1] = [slice(None)] * (len(shape) - len(axis_keys) + (at < len(axis_keys)))
    spans = [_span(size, key) for size, key in zip(shape, axis_keys, strict=True)]
    if 0 in result_shape or spans != list(map(range, shape)):
        # ONNX writes an end before the first element as -size - 1
        ends = tuple(span.stop if span.stop >= 0 else -size - 1 for span, size in zip(spans, shape, strict=True))
        starts, steps = (tuple(getattr(span, name) for span in spans) for name in ("start", "step"))
        sizes, axes = tuple(map(len, spans)), tuple(range(len(spans)))
        cut: dict[str, Any] = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
        a = _apply(a, "SLICE", lambda operand: operand[keys].reshape(sizes), **cut)
    return a if a.array.shape == result_shape else reshape(a, result_shape)


def _span(size: int, key: Any) -> range:
    selected = range(size)[key]
    return selected if isinstance(selected, range) else range(selected, selected + 1)


def _row(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda a, axis=None, *, keepdims=False: function(a, name, axis, keepdims is True)


FUNCTIONS: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {
        **{getattr(np, name): _row(_reduce, name) for name in ("sum", "prod", "max", "min", "mean")},
        np.amax: _row(_reduce, "max"),
        np.amin: _row(_reduce, "min"),
        **{getattr(np, name): _row(_arg_extreme, name) for name in ("argmax", "argmin")},
        np.cumsum: _cumsum,
        np.reshape: reshape,
        np.transpose: lambda a, axes=None: _reordered(a, np.transpose, axes),
        np.swapaxes: lambda a, axis1, axis2: _reordered(a, np.swapaxes, axis1, axis2),
        np.moveaxis: lambda a, source, destination: _reordered(a, np.moveaxis, source, destination),
        np.expand_dims: lambda a, axis: reshape(a, np.expand_dims(a.array, axis).shape),
        np.squeeze: lambda a, axis=None: reshape(a, np.squeeze(a.array, axis).shape),
        np.ravel: lambda a: reshape(a, -1),
        np.broadcast_to: _broadcast_to,
        np.concatenate: _concatenate,
        np.stack: _stack,
        np.where: _where,
        np.take: _take,
        np.clip: _clip,
        np.dot: _dot,
    }
)
"""numpy function -> implementation on tensors. Calls with unsupported arguments are computed by numpy."""


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


def _of_array(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: convert(self._array)


class TensorOperators(OnDevice, NDArrayOperatorsMixin):
    """Operators (also in place) and numpy functions of tensors. Operators call ufuncs."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _compare(self, name: str, other: object) -> Any:
        """Compare by a ufunc; a value that cannot become a tensor is unequal to every element."""
        try:
            return getattr(NDArrayOperatorsMixin, f"__{name}__")(self, other)
        except InvalidInputError:
            if isinstance(other, OnDevice):
                raise
            return self._back(np.asarray(getattr(operator, name)(self._array, other)))

    __eq__ = functools.partialmethod(_compare, "eq")
    __ne__ = functools.partialmethod(_compare, "ne")

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
            array = _compute_ufunc(like, ufunc, inputs)
            if array is not None:
                return like.with_array(array)
        return self._compute_on_host(f"numpy.{ufunc.__name__}", function, inputs, details)

    def __array_function__(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = kwargs.get("out")
        _refuse_outs(out if isinstance(out, tuple) else (out,))
        row = FUNCTIONS.get(func)
        if row is not None and _takes(row, args, kwargs):
            result = row(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._compute_on_host(f"numpy.{getattr(func, '__name__', func)}", func, args, kwargs)

    def _compute_on_host(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._report_unmapped(name)
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
        return cast(self, contents(0, dtype).dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements with another shape; one size may be -1."""
        return reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """Return the tensor with permuted axes, by default reversed."""
        return _reordered(self, np.transpose, axes[0] if len(axes) == 1 else axes or None)

    def squeeze(self, axis: Axes = None) -> Tensor:
        """Return the tensor without the axes `axis`, which must have size 1; by default without all such axes."""
        return self.reshape(np.squeeze(self._array, axis).shape)

    def ravel(self) -> Tensor:
        """Return the elements as one axis."""
        return self.reshape(-1)

    flatten = ravel

    def copy(self) -> Tensor:
        """Return the tensor itself, which is immutable."""
        return self

    any = _method(_truth, "any", "Check for nonzero elements along axes.")
    all = _method(_truth, "all", "Check for only nonzero elements along axes.")
    sum = _method(_reduce, "sum", "Return the sum over axes; it keeps the data type.")
    prod = _method(_reduce, "prod", "Return the product over axes; it keeps the data type.")
    mean = _method(_reduce, "mean", "Return the mean over axes; of integers, float32.")
    max = _method(_reduce, "max", "Return the largest element over axes.")
    min = _method(_reduce, "min", "Return the smallest element over axes.")
    argmax = _method(_arg_extreme, "argmax", "Return the position of the first largest element.")
    argmin = _method(_arg_extreme, "argmin", "Return the position of the first smallest element.")

    def __getitem__(self, key: Any) -> Tensor:
        """Return elements by numpy's rules, from the host if the key maps to no operation."""
        plain = tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)
        elements = _get_item(self, plain)
        if elements is not None:
            return elements
        self._report_unmapped("indexing with such a key")
        return self.with_array(freeze(np.asarray(self._array[plain])))

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("tensors are immutable; create another one, for example with numpy.where")

    __int__, __float__, __round__ = _of_item(int), _of_item(float), _of_item(round)
    __len__, __bool__, __index__ = _of_array(len), _of_array(bool), _of_array(operator.index)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False and dtype is not None and self._array.dtype != dtype:
            raise ValueError(f"{self.dtype.name} becomes {np.dtype(dtype).name} only by a copy; omit copy=False")
        return self._array.astype(dtype) if dtype is not None else self._array.copy() if copy else self._array

    def __repr__(self) -> str:
        numbers = np.array2string(self._array, separator=", ").replace("\n", "\n       ")
        between = "\n       " if "\n" in numbers else " "
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype.name}, place={self._place!r},{between}{numbers})"


_OPERATORS = "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or"
for _name in _OPERATORS.split():
    setattr(Tensor, f"__i{_name}__", getattr(NDArrayOperatorsMixin, f"__{_name}__"))


def _refuse_outs(outs: Sequence[Any]) -> None:
    if any(isinstance(out, Tensor) for out in outs):
        raise TypeError("tensors are immutable, so none can be the argument `out`; use the result instead")


def _write(output: Any, outs: Sequence[Any], casting: Any) -> Any:
    written = []
    for result, out in zip(output if isinstance(output, tuple) else (output,), outs, strict=True):
        if out is not None:
            np.copyto(out, np.asarray(result), casting=casting)
        written.append(result if out is None else out)
    return tuple(written) if isinstance(output, tuple) else written[0]


def _arrays(argument: Any) -> Any:
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
