"""Operations that move elements or reduce axes, with numpy's arguments read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.eager.applying import apply, cast
from nnadapter.eager.dtypes import common, floating, summed
from nnadapter.eager.place import Place
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
