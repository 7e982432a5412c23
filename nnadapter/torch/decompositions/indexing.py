"""Decompositions that move elements: indexing, scattering, copies into tensors, resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

Indices = Sequence[Tensor | None]
_SHORTER = (torch.int8, torch.int16, torch.int32)


def _by_long(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def decomposition(values: Tensor, indices: Indices, *arguments: Any, **named: Any) -> Any:
        if not any(index is not None and index.dtype in _SHORTER for index in indices):
            return NotImplemented
        return operator(values, [_long(index) for index in indices], *arguments, **named)

    return decomposition


OF_INDICES = {
    operator: _by_long(operator)
    for operator in (
        aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default,
    )
}  # fmt: skip
"""Decompositions of indexing by types other than int64, which ONNX does not support."""


def diagonal_scatter(values: Tensor, diagonal: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Replace a diagonal; PyTorch's decomposition mutates a tensor. Source: aten::diagonal_scatter."""
    axes = (dim1 % values.dim(), dim2 % values.dim())
    moved = values.movedim(axes, (-2, -1))
    rows, columns = torch.arange(moved.shape[-2]), torch.arange(moved.shape[-1])
    is_there = columns == rows.unsqueeze(-1) + offset
    padding = values.new_zeros((*diagonal.shape[:-1], abs(offset)), dtype=diagonal.dtype)
    # The diagonal as a row or column: its length is that of the shorter side, from its start on.
    spread = (torch.cat([padding, diagonal], -1) if offset else diagonal).to(values.dtype)
    by_column = offset >= 0
    length = moved.shape[-1 if by_column else -2]
    short = length - spread.shape[-1]
    if short > 0:
        spread = torch.cat([spread, spread.new_zeros((*spread.shape[:-1], short))], -1)
    scattered = torch.where(is_there, spread.unsqueeze(-2 if by_column else -1), moved)
    return scattered.movedim((-2, -1), axes).contiguous()


def _scatter(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return a decomposition of scatters with rank 0, indices other than int64, or sources larger than the indices."""

    def decomposition(values: Tensor, dim: int, index: Tensor, source: Tensor, *arguments: Any, **named: Any) -> Any:
        if not (values.dim() and index.dim() and source.dim()):
            flat = [tensor.reshape(-1) if not tensor.dim() else tensor for tensor in (values, index, source)]
            return operator(flat[0], dim, *flat[1:], *arguments, **named).reshape(values.shape)
        if index.dtype in _SHORTER:
            return operator(values, dim, index.long(), source, *arguments, **named)
        if list(index.shape) == list(source.shape):
            return NotImplemented
        for axis, size in enumerate(index.shape):
            source = source.narrow(axis, 0, size)
        return operator(values, dim, index, source, *arguments, **named)

    return decomposition


def _scatter_reduce(
    values: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    operator = aten.scatter_reduce.two
    result = _scatter(operator)(values, dim, index, source, reduce, include_self=include_self)
    if result is not NotImplemented:
        return result
    if reduce == "mean":
        start, counts = values, torch.ones_like(values)
        if not include_self:
            start, counts = (torch.scatter(tensor, dim, index, torch.zeros_like(source)) for tensor in (start, counts))
        total = torch.scatter_add(start, dim, index, source)
        count = torch.scatter_add(counts, dim, index, torch.ones_like(source))
        return total / count if values.is_floating_point() else torch.div(total, count, rounding_mode="floor")
    if reduce not in ("amax", "amin") or include_self or values.dtype is torch.bool:
        return NotImplemented
    kind = values.dtype
    lowest, highest = (float("-inf"), float("inf")) if kind.is_floating_point else _bounds(kind)
    neutral = torch.full_like(source, lowest if reduce == "amax" else highest)
    return operator(torch.scatter(values, dim, index, neutral), dim, index, source, reduce, include_self=True)


def _bounds(kind: torch.dtype) -> tuple[int, int]:
    bounds = torch.iinfo(kind)
    return bounds.min, bounds.max


OF_SCATTERING: Mapping[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.scatter.src: _scatter(aten.scatter.src),
    aten.scatter_add.default: _scatter(aten.scatter_add.default),
    aten.scatter_reduce.two: _scatter_reduce,
}


def _long(indices: Tensor | None) -> Tensor | None:
    return indices.long() if indices is not None and indices.dtype in _SHORTER else indices


def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Decompose aten::copy."""
    copied = source.to(target.dtype) if source.dtype != target.dtype else source.clone()
    return copied if copied.shape == target.shape else copied.expand(target.shape)


_NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
BY_SCALES = (*_NEAREST, aten.upsample_bicubic2d.vec)


def _nearest(
    decomposition: Callable[..., Tensor],
    values: Tensor,
    output_size: Any,
    scale_factors: Sequence[float] | None,
) -> Any:
    """Resize with PyTorch's rounding, unless each scale or its inverse is an integer."""
    if all(is_whole(scale) or is_whole(1 / scale) for scale in scale_factors or ()):
        return NotImplemented
    assert scale_factors is not None, "else there would be no scale that is none"
    if any(depends_on_length(scale, length) for scale, length in zip(scale_factors, values.shape[2:], strict=True)):
        return NotImplemented
    return decomposition(values, output_size, list(map(_effective_scale, scale_factors, values.shape[2:])))


def depends_on_length(scale: float, length: Any) -> bool:
    """Return True if a dynamic length determines which elements PyTorch selects."""
    return scale > 1 and not is_whole(scale) and not isinstance(length, int)


def _effective_scale(scale: float, length: Any) -> float:
    grown = int(length * scale) if isinstance(length, int) else None
    return {length: 1.0, 2 * length: 2.0}.get(grown, scale) if grown else scale


def is_whole(scale: float) -> bool:
    """Return True for an integer scale."""
    return float(scale).is_integer()


NEAREST = {
    operator: partial(_nearest, decomposition) for operator, decomposition in get_decompositions(_NEAREST).items()
}
