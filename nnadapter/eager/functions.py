"""THE table: numpy's functions (`__array_function__`) on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.eager import shaping
from nnadapter.eager.applying import cast
from nnadapter.eager.dtypes import common
from nnadapter.eager.placed import Placed, joined

NotMapped = object()
"""What a row gives for arguments that there is no operation for."""


def _reduction(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *, keepdims: Any = np._NoValue) -> Any:
        tensor = _tensor(a)
        return tensor.made(shaping.reduce(tensor.place, name, tensor.held, axis, keepdims is True))

    return function


def _arg(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *, keepdims: Any = np._NoValue) -> Any:
        tensor = _tensor(a)
        return tensor.made(shaping.arg_extreme(tensor.place, name, tensor.held, axis, keepdims is True))

    return function


def _tensor(argument: Any) -> Any:
    """A tensor, where numpy's function is of one."""
    if not isinstance(argument, Placed):
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
    return _tensor(a).reshape(np.expand_dims(a.held, axis).shape)


def _squeeze(a: Any, axis: Any = None) -> Any:
    return _tensor(a).reshape(np.squeeze(a.held, axis).shape)


def _ravel(a: Any) -> Any:
    return _tensor(a).reshape(-1)


def _broadcast_to(array: Any, shape: Any) -> Any:
    target_shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return array.made(shaping.expand(_tensor(array).place, array.held, target_shape))


def _concatenate(arrays: Any, /, axis: Any = 0) -> Any:
    like, operands = joined(list(arrays))
    if axis is None:
        operands, axis = [shaping.reshape(like.place, operand, (-1,)) for operand in operands], 0
    return like.made(shaping.concatenate(like.place, operands, axis))


def _stack(arrays: Any, axis: int = 0) -> Any:
    like, operands = joined(list(arrays))
    shape = np.expand_dims(operands[0], axis).shape
    if any(operand.shape != operands[0].shape for operand in operands):
        raise ValueError("all tensors that are stacked must have the same shape")
    along = axis if axis >= 0 else axis + len(shape)
    return like.made(
        shaping.concatenate(like.place, [shaping.reshape(like.place, operand, shape) for operand in operands], along)
    )


def _where(condition: Any, /, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        return NotMapped
    like, operands = joined([condition, x, y])
    return like.made(shaping.where(like.place, *operands))


def _take(a: Any, indices: Any, axis: Any = None) -> Any:
    like, (operand, numbers) = joined([_tensor(a), indices])
    flat = shaping.reshape(like.place, operand, (-1,)) if axis is None else operand
    return like.made(shaping.take(like.place, flat, numbers, axis or 0))


def _clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    if not all(limit is None or type(limit) in (int, float) for limit in (a_min, a_max)):
        return NotMapped
    bounds = [limit for limit in (a_min, a_max) if limit is not None]
    if any(float(bound) != bound for bound in bounds):
        # NaN, or an int that the operation's floating bounds do not hold.
        raised = a if a_min is None else np.maximum(a, a_min)
        return raised if a_max is None else np.minimum(raised, a_max)
    dtype = common([_tensor(a).dtype], bounds)
    return a.made(shaping.clip(a.place, cast(a.place, a.held, dtype), a_min, a_max))


def _dot(a: Any, b: Any) -> Any:
    _, (first, other) = joined([a, b])
    if min(first.ndim, other.ndim) == 0:
        return np.multiply(a, b)
    return np.matmul(a, b) if max(first.ndim, other.ndim) <= 2 else NotMapped


def _cumsum(a: Any, axis: Any = None) -> Any:
    return a.made(shaping.cumulate(_tensor(a).place, a.held, axis))


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
