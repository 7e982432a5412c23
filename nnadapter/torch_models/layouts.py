"""How results lie in memory, where PyTorch's own would lie otherwise than one row behind the other.

Sessions give results in rows. What reads them in a session does not care; a person's code may, and so may operators
that stay in PyTorch, and views that PyTorch makes again of a result by its strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

Order = tuple[int, ...]


def order_of(like: Any) -> Order | None:
    """Return the axes of a tensor from the one that varies slowest in memory; None where that is their own order.

    Expanded tensors, parts of which lie in the same place, have none.
    """
    strides = [_number(stride) for stride in like.stride()]
    if 0 in strides:
        return None
    order = tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis)))
    moved = [axis for axis in order if _number(like.shape[axis]) != 1]
    return order if moved != sorted(moved) else None


def strides_of_one(like: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor of known sizes that differ from rows along axes of one element alone, or None."""
    if any(isinstance(size, torch.SymInt) for size in (*like.shape, *like.stride())) or 0 in like.shape:
        return None
    step, differs = 1, False
    for size, stride in reversed(list(zip(like.shape, like.stride(), strict=True))):
        if stride != step:
            if size != 1 or not stride:
                return None
            differs = True
        step *= size
    return tuple(like.stride()) if differs else None


def laid_out(order: Order) -> Callable[[Any], Any]:
    """Return what copies a tensor so that its axes vary in `order`, the slowest first."""
    back = tuple(order.index(axis) for axis in range(len(order)))
    return lambda tensor: tensor.permute(order).contiguous().permute(back)


def lying_as(like: Any) -> Callable[[Any], Any] | None:
    """Return what gives a tensor as `like` lies in memory: a copy, if it lies otherwise. None where that is in rows."""
    order = order_of(like) if isinstance(like, torch.Tensor) else None
    if order is None:
        return None
    arrange = laid_out(order)
    return lambda tensor: tensor if order_of(tensor) == order else arrange(tensor)


def without_elements(like: Any) -> Callable[[Sequence[int]], Any]:
    """Return what makes a tensor of a shape that has no elements, with the strides of PyTorch's own."""
    order = order_of(like) or tuple(range(like.ndim))
    back = tuple(order.index(axis) for axis in range(len(order)))
    return lambda shape: torch.empty([shape[axis] for axis in order], dtype=like.dtype).permute(back)


def bytes_of(like: Any) -> int:
    """Return how many bytes a tensor, or a size, takes; where sizes are open, in the first call."""
    if not isinstance(like, torch.Tensor):
        return 8
    return prod(map(_number, like.shape)) * int(like.dtype.itemsize)


def _number(size: Any) -> int:
    """A size, or what it was in the first call where it is open."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
