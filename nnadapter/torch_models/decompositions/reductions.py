"""Reductions that PyTorch's exporter writes in another data type, without an argument, or as invalid ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

from nnadapter.torch_models.decompositions.elementwise import HALVES, Decomposition

_NORM_OF_FLOAT64 = get_decompositions([aten.linalg_vector_norm.default])[aten.linalg_vector_norm.default]


def as_one_element(operator: torch._ops.OpOverload) -> Decomposition:
    """Return a decomposition of an operator along an axis for tensors of rank 0, which have no axis in ONNX."""

    def written(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dim():
            return NotImplemented
        lifted = [argument.reshape(-1) if isinstance(argument, Tensor) else argument for argument in arguments]
        result = operator(values.reshape(1), *lifted, **named)
        return result.reshape(()) if isinstance(result, Tensor) else tuple(output.reshape(()) for output in result)

    return written


def of_first_match(*written: Decomposition) -> Decomposition:
    """Return a decomposition that is the first of several that applies."""

    def decomposed(*arguments: Any, **named: Any) -> Any:
        for decomposition in written:
            result = decomposition(*arguments, **named)
            if result is not NotImplemented:
                return result
        return NotImplemented

    return decomposed


def _converted_first(operator: torch._ops.OpOverload, values: Tensor, *arguments: Any, dtype: Any = None) -> Any:
    """Convert before the reduction, where the exporter converts the result."""
    if dtype is None or dtype == values.dtype:
        return NotImplemented
    return operator(values.to(dtype), *arguments)


def _softmax(operator: torch._ops.OpOverload, values: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Convert before the softmax, where the exporter converts the result."""
    return NotImplemented if dtype is None or dtype == values.dtype else operator(values.to(dtype), dim)


def _truth_of_nothing(is_all: bool, values: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return `any` or `all` of a tensor without elements: of none they are False and True."""
    if 0 not in [size for size in values.shape if isinstance(size, int)]:
        return NotImplemented
    counted = (values == 0) if is_all else (values != 0)
    count = counted.sum() if dim is None else counted.sum([dim] if isinstance(dim, int) else list(dim), keepdim)
    return count == 0 if is_all else count > 0


def _vector_norm(
    values: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return norms summed in float32 at least; axes are named where all are reduced.

    Source: aten::linalg_vector_norm.
    """
    operator = aten.linalg_vector_norm.default
    if values.is_complex():
        return NotImplemented
    if not values.dim():
        return operator(values.reshape(1), order, [0], False, dtype=dtype).reshape(())
    result_dtype = values.dtype if dtype is None else dtype
    inner = torch.float32 if result_dtype in HALVES else result_dtype
    axes = [dim] if isinstance(dim, int) else list(dim or range(values.dim()))
    if dim is None or not axes or inner != values.dtype or dtype is not None:
        return operator(values.to(inner), order, axes, keepdim).to(result_dtype)
    return _NORM_OF_FLOAT64(values, order, dim, keepdim) if inner is torch.float64 else NotImplemented


def _moments(
    values: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor] | None:
    """Return variance and mean along axes; None where these have to be written by PyTorch."""
    axes = [axis % values.dim() for axis in dim] if dim and values.dim() else list(range(values.dim()))
    sizes = [values.shape[axis] for axis in axes]
    correction = 1 if correction is None else correction
    if values.is_complex() or not (all(isinstance(size, int) for size in sizes) or 0 <= correction <= 1):
        return None
    count: Any = 1
    for size in sizes:
        count = count * size
    mean = values.sum(axes, keepdim=True) / count
    centered = values - mean
    total = (centered * centered).sum(axes, keepdim=keepdim)
    divisor = max(count - correction, 0) if isinstance(count, int) else count - correction
    return total / divisor, mean if keepdim else mean.reshape(total.shape)


def _statistics(
    is_deviation: bool,
    has_mean: bool,
    values: Tensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """Return variances, or deviations, and means if wanted; of no elements they are NaN."""
    moments = _moments(values.float() if values.dtype in HALVES else values, dim, correction, keepdim)
    if moments is None:
        return NotImplemented
    variance, mean = moments
    spread = (torch.sqrt(variance) if is_deviation else variance).to(values.dtype)
    return (spread, mean.to(values.dtype)) if has_mean else spread


def _running_product(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Return products of all elements up to each one, of 2, 4, 8... elements in turn. Source: aten::cumprod."""
    if dtype is None:
        dtype = values.dtype if values.is_floating_point() or values.is_complex() else torch.int64
    if dtype.is_complex:
        return NotImplemented
    inner = torch.float32 if dtype in HALVES else dtype
    products = values.to(inner, copy=True)
    length = values.shape[dim] if values.dim() else 1
    if not isinstance(length, int):
        return NotImplemented
    step = 1
    while step < length:
        first = products.narrow(dim, 0, step)
        tail = products.narrow(dim, step, length - step) * products.narrow(dim, 0, length - step)
        products, step = torch.cat([first, tail], dim), 2 * step
    return products.to(dtype)


_ALONG_AXES = (aten.prod.dim_int, aten.topk.default, aten.scatter.src, aten.scatter.value)
OF_REDUCTIONS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **{operator: as_one_element(operator) for operator in _ALONG_AXES},
    **{
        operator: of_first_match(as_one_element(operator), partial(_truth_of_nothing, is_all))
        for operator, is_all in (
            (aten.any.dim, False), (aten.any.dims, False), (aten.all.dim, True), (aten.all.dims, True),
        )
    },
    aten.any.default: partial(_truth_of_nothing, False), aten.all.default: partial(_truth_of_nothing, True),
    **{operator: partial(_converted_first, operator) for operator in (aten.mean.default, aten.mean.dim)},
    **{operator: partial(_softmax, operator) for operator in (aten.softmax.int, aten.log_softmax.int)},
    aten.linalg_vector_norm.default: _vector_norm,
    aten.var.correction: partial(_statistics, False, False),
    aten.var_mean.correction: partial(_statistics, False, True),
    aten.std.correction: partial(_statistics, True, False),
    aten.std_mean.correction: partial(_statistics, True, True),
    aten.cumprod.default: _running_product,
}  # fmt: skip
"""Reductions whose form in the exporter differs from PyTorch's kernel."""
