"""How results lie in memory, where PyTorch's own would lie otherwise than one row behind the other.

Sessions give results in rows. What reads them inside a graph does not care; a person's code may, and so may views that
PyTorch makes again of a result by its strides.
"""

from __future__ import annotations

from collections.abc import Callable
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


def laid_out(order: Order) -> Callable[[Any], Any]:
    """Return what copies a tensor so that its axes vary in `order`, the slowest first."""
    back = tuple(order.index(axis) for axis in range(len(order)))
    return lambda tensor: tensor.permute(order).contiguous().permute(back)


def _number(size: Any) -> int:
    """A size, or what it was in the first call where it is open."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
