"""Elements by their place, where PyTorch's exporter fails or writes what is no valid ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.ops import aten

Indices = Sequence[Tensor | None]
_SHORTER = (torch.int8, torch.int16, torch.int32)


def _by_long(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def written(values: Tensor, indices: Indices, *arguments: Any, **named: Any) -> Any:
        if not any(each is not None and each.dtype in _SHORTER for each in indices):
            return NotImplemented
        return operator(values, [_long(each) for each in indices], *arguments, **named)

    return written


OF_INDICES = {
    operator: _by_long(operator)
    for operator in (
        aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default,
    )
}  # fmt: skip
"""Elements by indices that are not int64, which ONNX has by int64 alone."""


def diagonal_scatter(values: Tensor, given: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The same with another diagonal; PyTorch's own way changes a tensor in place. Source: aten::diagonal_scatter."""
    axes = (dim1 % values.dim(), dim2 % values.dim())
    moved = values.movedim(axes, (-2, -1))
    rows, columns = torch.arange(moved.shape[-2]), torch.arange(moved.shape[-1])
    is_there = columns == rows.unsqueeze(-1) + offset
    before = values.new_zeros((*given.shape[:-1], abs(offset)), dtype=given.dtype)
    # One behind the other along the diagonal, which has as many elements as the shorter side from its start on.
    spread = (torch.cat([before, given], -1) if offset else given).to(values.dtype)
    by_column = offset >= 0
    length = moved.shape[-1 if by_column else -2]
    short = length - spread.shape[-1]
    if short > 0:
        spread = torch.cat([spread, spread.new_zeros((*spread.shape[:-1], short))], -1)
    scattered = torch.where(is_there, spread.unsqueeze(-2 if by_column else -1), moved)
    return scattered.movedim((-2, -1), axes).contiguous()


def _long(indices: Tensor | None) -> Tensor | None:
    return indices.long() if indices is not None and indices.dtype in _SHORTER else indices
