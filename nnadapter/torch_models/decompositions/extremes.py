"""Largest and smallest elements, and their order.

ONNX has these of numbers alone, and not of truths; PyTorch's exporter fails where no axes are named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.ops import aten

from nnadapter.torch_models.decompositions.reductions import as_one_element


def _as_numbers(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def written(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dtype is not torch.bool:
            return NotImplemented
        result = operator(values.to(torch.int32), *arguments, **named)
        if isinstance(result, Tensor):
            return result.to(torch.bool)
        first, *places = result
        return (first.to(torch.bool), *places)

    return written


def _over_axes(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    of_truths = _as_numbers(operator)

    def written(values: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
        if not values.dim():
            return as_one_element(operator)(values, [0])
        axes = [dim] if isinstance(dim, int) else list(dim)
        if not axes:
            return operator(values, list(range(values.dim())), keepdim)
        return of_truths(values, axes, keepdim)

    return written


OF_EXTREMES = {
    **{
        operator: _as_numbers(operator)
        for operator in (
            aten.max.default, aten.max.dim, aten.min.default, aten.min.dim, aten.sort.default, aten.sort.stable,
        )
    },
    **{operator: _over_axes(operator) for operator in (aten.amax.default, aten.amin.default)},
}  # fmt: skip
"""What is written otherwise where its input is bool, or where it names no axes."""
