"""Functions of numpy on tensors: the table for `__array_function__`, shapes, reductions and indexing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index as as_integer
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.eager.execution import apply, cast
from nnadapter.eager.place import OnDevice, Place, common, floating, joined, summed
from nnadapter.ir.operand import Array
from nnadapter.ir.schema import AttributeValue

Axes = int | Sequence[int] | None


def one_axis(axis: int, rank: int) -> int:
    """An axis counted from the first.

    Raises:
        numpy.exceptions.AxisError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise np.exceptions.AxisError(axis, rank)
    return axis % rank


def all_axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Several axes counted from the first.

    Raises:
        ValueError: one stands there twice.
        numpy.exceptions.AxisError: one does not exist.
    """
    listed_axes = axes if isinstance(axes, Sequence) else (axes,)
    normalized_axes = tuple(one_axis(axis, rank) for axis in listed_axes)
    if len(set(normalized_axes)) != len(normalized_axes):
        raise ValueError(f"axes are {list(listed_axes)}, expected none twice")
    return normalized_axes


def reshape(place: Place, array: Array, shape: Sequence[int]) -> Array:
    """The same elements under other dimensions, of which one may be -1."""
    target_shape = array.reshape(tuple(shape)).shape  # numpy works out what -1 means, and says what is wrong
    return apply(place, "RESHAPE", [array], lambda operand: operand.reshape(target_shape), {"shape": target_shape})


def transpose(place: Place, array: Array, axes: Sequence[int] | None = None) -> Array:
    """Axes in another order, reversed if None."""
    order = tuple(range(array.ndim))[::-1] if axes is None else all_axes(tuple(axes), array.ndim)
    if len(order) != array.ndim:
        raise ValueError(f"axes are {list(order)}, expected each of {array.ndim} once")
    return apply(place, "TRANSPOSE", [array], lambda operand: operand.transpose(order), {"perm": order})


def expand(place: Place, array: Array, shape: Sequence[int]) -> Array:
    """Repeated along axes of size 1, as numpy broadcasts."""
    target_shape = np.broadcast_shapes(array.shape, tuple(shape))
    if target_shape != tuple(shape):
        raise ValueError(f"dimensions {list(array.shape)} cannot be broadcast to {list(shape)}")
    return apply(
        place, "EXPAND", [array], lambda operand: np.broadcast_to(operand, target_shape), {"shape": target_shape}
    )


def concatenate(place: Place, arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays behind one another along an axis."""
    dtype = common([array.dtype for array in arrays])
    operands = [cast(place, array, dtype) for array in arrays]
    along = one_axis(axis, operands[0].ndim)
    return apply(place, "CONCAT", operands, lambda *parts: np.concatenate(parts, along), {"axis": along}, "")


def where(place: Place, condition: Array, first: Array, other: Array) -> Array:
    """Elements of one array or the other."""
    dtype = common([first.dtype, other.dtype])
    operands = [cast(place, condition, np.dtype(np.bool_)), cast(place, first, dtype), cast(place, other, dtype)]
    return apply(place, "WHERE", operands, np.where, None, "Where")


def take(place: Place, array: Array, indices: Array, axis: int) -> Array:
    """Elements along one axis, by their numbers; negative ones count from the end."""
    along = one_axis(axis, array.ndim)
    size = array.shape[along]
    if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:
        raise IndexError(f"an index is out of bounds for axis {along} of size {size}")
    numbers = np.asarray(np.where(indices < 0, indices + size, indices), np.int64)
    return apply(
        place, "GATHER", [array, numbers], lambda operand, at: np.take(operand, at, along), {"axis": along}, ""
    )


def clip(place: Place, array: Array, low: float | None, high: float | None) -> Array:
    """Elements between two of Python's numbers."""
    bounds: dict[str, AttributeValue] = {
        "min": -np.inf if low is None else float(low),
        "max": np.inf if high is None else float(high),
    }
    return apply(place, "CLIP", [array], lambda operand: np.clip(operand, low, high).astype(operand.dtype), bounds)


REDUCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = MappingProxyType(
    {
        "sum": ("REDUCE_SUM", np.sum),
        "prod": ("REDUCE_PROD", np.prod),
        "max": ("REDUCE_MAX", np.max),
        "min": ("REDUCE_MIN", np.min),
        "mean": ("REDUCE_MEAN", np.mean),
    }
)
"""By numpy's name."""


def reduce(place: Place, name: str, array: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """A reduction over some axes, over all of them if None."""
    type_, function = REDUCTIONS[name]
    axes = tuple(range(array.ndim)) if axis is None else all_axes(axis, array.ndim)
    dtype = floating(array.dtype) if name == "mean" else summed(array.dtype)
    if name in ("max", "min") and array.dtype == np.bool_:
        dtype = array.dtype
    operand = cast(place, array, dtype)
    if not axes:
        return operand
    return apply(
        place,
        type_,
        [operand],
        lambda values: function(values, axis=axes, keepdims=keepdims).astype(dtype),
        {"axes": tuple(sorted(axes)), "keepdims": keepdims},
    )


def arg_extreme(place: Place, name: str, array: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the first largest or smallest element stands: `argmax` or `argmin`."""
    type_, function = {"argmax": ("ARG_MAX", np.argmax), "argmin": ("ARG_MIN", np.argmin)}[name]
    flat = reshape(place, array, (-1,)) if axis is None else array
    along = 0 if axis is None else one_axis(axis, array.ndim)
    indices = apply(
        place,
        type_,
        [flat],
        lambda operand: function(operand, axis=along, keepdims=keepdims and axis is not None),
        {"axis": along, "keepdims": keepdims and axis is not None},
    )
    return reshape(place, indices, (1,) * array.ndim) if keepdims and axis is None else indices


def cumulate(place: Place, array: Array, axis: int | None = None) -> Array:
    """Sums from the first element on, along an axis or over all elements in order."""
    flat = reshape(place, array, (-1,)) if axis is None else array
    along = 0 if axis is None else one_axis(axis, array.ndim)
    dtype = summed(array.dtype)
    operand = cast(place, flat, dtype)
    return apply(place, "CUM_SUM", [operand], lambda values: np.cumsum(values, along).astype(dtype), {"axis": along})


_BASIC = (int, np.integer, slice)


def get_item(place: Place, array: Array, key: Any) -> Array | None:
    """Return what `array[key]` is, or None where there is no operation for such a key.

    Raises:
        IndexError: the key is out of bounds, or has too many entries.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], np.ndarray) and keys[0].dtype.kind in "iu" and array.ndim:
        return take(place, array, keys[0], 0)
    if not all(_is_basic(entry) for entry in keys):
        return None
    result_shape = array[keys].shape  # a view; numpy says what is wrong with the key
    starts, ends, steps = _slices(array.shape, _complete(keys, array.ndim))
    if 0 in result_shape:
        return apply(
            place, "SLICE", [array], lambda operand: operand[keys], _attributes(array.shape, starts, ends, steps)
        )
    sliced = array
    if any(
        (start, end, step) != (0, size, 1)
        for start, end, step, size in zip(starts, ends, steps, array.shape, strict=True)
    ):
        cut = tuple(
            slice(start, end if end >= 0 else None, step) for start, end, step in zip(starts, ends, steps, strict=True)
        )
        sliced = apply(
            place, "SLICE", [array], lambda operand: operand[cut], _attributes(array.shape, starts, ends, steps)
        )
    return sliced if sliced.shape == result_shape else reshape(place, sliced, result_shape)


def _is_basic(key: object) -> bool:
    return key is None or key is Ellipsis or (isinstance(key, _BASIC) and not isinstance(key, bool))


def _complete(keys: tuple[Any, ...], rank: int) -> list[Any]:
    """One entry per axis: new axes left out, and `...` for as many whole ones as are needed."""
    axis_keys = [key for key in keys if key is not None]
    key_count = sum(key is not Ellipsis for key in axis_keys)
    if Ellipsis not in axis_keys:
        axis_keys.append(Ellipsis)
    place = next(at for at, key in enumerate(axis_keys) if key is Ellipsis)
    return [*axis_keys[:place], *[slice(None)] * (rank - key_count), *axis_keys[place + 1 :]]


def _slices(shape: tuple[int, ...], keys: list[Any]) -> tuple[list[int], list[int], list[int]]:
    spans = []
    for size, key in zip(shape, keys, strict=True):
        if isinstance(key, slice):
            spans.append(key.indices(size))
        else:
            at = as_integer(key) % size if size else 0
            spans.append((at, at + 1, 1))
    return [span[0] for span in spans], [span[1] for span in spans], [span[2] for span in spans]


def _attributes(shape: tuple[int, ...], starts: list[int], ends: list[int], steps: list[int]) -> dict[str, Any]:
    # Python's end of -1 means "before the first" here; ONNX writes that as one before the first, counted from the end.
    last = [end if end >= 0 else -size - 1 for end, size in zip(ends, shape, strict=True)]
    return {"starts": tuple(starts), "ends": tuple(last), "axes": tuple(range(len(starts))), "steps": tuple(steps)}


NotMapped = object()
"""What a row gives for arguments that there is no operation for."""


def _reduction(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *, keepdims: Any = np._NoValue) -> Any:
        tensor = _tensor(a)
        return tensor.with_array(reduce(tensor.place, name, tensor.array, axis, keepdims is True))

    return function


def _arg(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *, keepdims: Any = np._NoValue) -> Any:
        tensor = _tensor(a)
        return tensor.with_array(arg_extreme(tensor.place, name, tensor.array, axis, keepdims is True))

    return function


def _tensor(argument: Any) -> Any:
    """A tensor, where numpy's function is of one."""
    if not isinstance(argument, OnDevice):
        raise TypeError(f"expected a tensor, got {type(argument).__name__}")
    return argument


def _reshape(a: Any, /, shape: Any) -> Any:
    return _tensor(a).reshape(shape)


def _transpose(a: Any, axes: Any = None) -> Any:
    return _tensor(a).transpose(axes)


def _swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(_tensor(a).ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return a.transpose(order)


def _moveaxis(a: Any, source: Any, destination: Any) -> Any:
    tensor = _tensor(a)
    order = np.moveaxis(np.empty(range(1, tensor.ndim + 1)), source, destination).shape
    return tensor.transpose([size - 1 for size in order])


def _expand_dims(a: Any, axis: Any) -> Any:
    return _tensor(a).reshape(np.expand_dims(a.array, axis).shape)


def _squeeze(a: Any, axis: Any = None) -> Any:
    return _tensor(a).reshape(np.squeeze(a.array, axis).shape)


def _ravel(a: Any) -> Any:
    return _tensor(a).reshape(-1)


def _broadcast_to(array: Any, shape: Any) -> Any:
    target_shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return array.with_array(expand(_tensor(array).place, array.array, target_shape))


def _concatenate(arrays: Any, /, axis: Any = 0) -> Any:
    like, operands = joined(list(arrays))
    if axis is None:
        operands, axis = [reshape(like.place, operand, (-1,)) for operand in operands], 0
    return like.with_array(concatenate(like.place, operands, axis))


def _stack(arrays: Any, axis: int = 0) -> Any:
    like, operands = joined(list(arrays))
    shape = np.expand_dims(operands[0], axis).shape
    if any(operand.shape != operands[0].shape for operand in operands):
        raise ValueError("all tensors that are stacked must have the same shape")
    along = axis if axis >= 0 else axis + len(shape)
    return like.with_array(
        concatenate(like.place, [reshape(like.place, operand, shape) for operand in operands], along)
    )


def _where(condition: Any, /, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        return NotMapped
    like, operands = joined([condition, x, y])
    return like.with_array(where(like.place, *operands))


def _take(a: Any, indices: Any, axis: Any = None) -> Any:
    like, (operand, numbers) = joined([_tensor(a), indices])
    flat = reshape(like.place, operand, (-1,)) if axis is None else operand
    return like.with_array(take(like.place, flat, numbers, axis or 0))


def _clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    if not all(limit is None or type(limit) in (int, float) for limit in (a_min, a_max)):
        return NotMapped
    bounds = [limit for limit in (a_min, a_max) if limit is not None]
    if any(float(bound) != bound for bound in bounds):
        # NaN, or an int that the operation's floating bounds do not hold.
        raised = a if a_min is None else np.maximum(a, a_min)
        return raised if a_max is None else np.minimum(raised, a_max)
    dtype = common([_tensor(a).dtype], bounds)
    return a.with_array(clip(a.place, cast(a.place, a.array, dtype), a_min, a_max))


def _dot(a: Any, b: Any) -> Any:
    _, (first, other) = joined([a, b])
    if min(first.ndim, other.ndim) == 0:
        return np.multiply(a, b)
    return np.matmul(a, b) if max(first.ndim, other.ndim) <= 2 else NotMapped


def _cumsum(a: Any, axis: Any = None) -> Any:
    return a.with_array(cumulate(_tensor(a).place, a.array, axis))


FUNCTIONS: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {
        np.sum: _reduction("sum"),
        np.prod: _reduction("prod"),
        np.max: _reduction("max"),
        np.min: _reduction("min"),
        np.amax: _reduction("max"),
        np.amin: _reduction("min"),
        np.mean: _reduction("mean"),
        np.argmax: _arg("argmax"),
        np.argmin: _arg("argmin"),
        np.cumsum: _cumsum,
        np.reshape: _reshape,
        np.transpose: _transpose,
        np.swapaxes: _swapaxes,
        np.moveaxis: _moveaxis,
        np.expand_dims: _expand_dims,
        np.squeeze: _squeeze,
        np.ravel: _ravel,
        np.broadcast_to: _broadcast_to,
        np.concatenate: _concatenate,
        np.stack: _stack,
        np.where: _where,
        np.take: _take,
        np.clip: _clip,
        np.dot: _dot,
    }
)
"""Numpy's function -> what it is on tensors. Arguments that a row does not have are not mapped."""
