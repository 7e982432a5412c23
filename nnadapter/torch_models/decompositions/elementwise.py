"""Elementwise functions that PyTorch's exporter writes with less precision, or wrongly for NaN, infinities or zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

Decomposition = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)


def in_float32(written: Decomposition) -> Decomposition:
    """Return a decomposition that computes 16-bit floating-point numbers in float32, as PyTorch's kernels do."""

    @wraps(written)
    def computed(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dtype not in HALVES:
            return written(values, *arguments, **named)
        wide = [
            argument.float() if isinstance(argument, Tensor) and argument.dtype in HALVES else argument
            for argument in arguments
        ]
        return written(values.float(), *wide, **named).to(values.dtype)

    return computed


def _of_reals(written: Decomposition) -> Decomposition:
    """Return a decomposition that takes floating-point numbers, and integers as float32."""

    @wraps(written)
    def computed(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.is_complex():
            return NotImplemented
        if not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        return in_float32(written)(values, *arguments, **named)

    return computed


@_of_reals
def _expm1(values: Tensor) -> Tensor:
    """Return exp(x) - 1 without cancellation near 0. Source: aten::expm1."""
    return torch.tanh(values / 2) * (torch.exp(values) + 1)


@_of_reals
def _log1p(values: Tensor) -> Tensor:
    """Return log(1 + x), corrected for the rounding of 1 + x. Source: aten::log1p."""
    above = values + 1
    corrected = torch.log(above) * (values / (above - 1))
    return torch.where((above == 1) | (values == math.inf), values, corrected)


def _log_sigmoid(values: Tensor) -> Tensor:
    """Return the logarithm of the sigmoid, also where that is 0. Source: aten::log_sigmoid."""
    return torch.where(values < 0, values, torch.zeros_like(values)) - torch.log1p(torch.exp(-values.abs()))


def _logaddexp(first: Tensor, second: Tensor) -> Any:
    """Return log(exp(a) + exp(b)) without overflow. Source: aten::logaddexp."""
    if first.is_complex() or not first.is_floating_point():
        return NotImplemented
    larger, difference = _ordered(first, second)
    return torch.where(torch.isinf(first) & (first == second), first, larger + torch.log1p(torch.exp(difference)))


def _logaddexp2(first: Tensor, second: Tensor) -> Any:
    """Return log2(2**a + 2**b) without overflow. Source: aten::logaddexp2."""
    if not first.is_floating_point():
        return NotImplemented
    larger, difference = _ordered(first, second)
    added = torch.log1p(torch.exp2(difference)) * (1 / math.log(2))
    return torch.where(torch.isinf(first) & (first == second), first, larger + added)


def _ordered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger numbers, and the smaller ones minus these."""
    is_less = first < second
    larger, smaller = torch.where(is_less, second, first), torch.where(is_less, first, second)
    return larger, smaller - larger


def _is_negative(values: Tensor) -> Tensor:
    """Return where numbers are negative or -0.0."""
    return (values < 0) | (torch.reciprocal(values) < 0)


@in_float32
def _atan2(ordinate: Tensor, abscissa: Tensor) -> Any:
    """Return the angle of points, on the axes and at infinity too. Source: aten::atan2."""
    if not ordinate.is_floating_point() or not abscissa.is_floating_point():
        return NotImplemented
    height, width = ordinate.abs(), abscissa.abs()
    slope = torch.where((height == width) & (torch.isinf(height)), 1.0, height / width)
    slope = torch.where((height == 0) & (width == 0), 0.0, slope)
    angle = torch.atan(slope)
    angle = torch.where(_is_negative(abscissa), math.pi - angle, angle)
    return torch.where(_is_negative(ordinate), -angle, angle)


def _angle(values: Tensor) -> Any:
    """Return pi for negative numbers, 0 for others and NaN for NaN. Source: aten::angle."""
    if values.is_complex() or not values.is_floating_point():
        return NotImplemented
    angle = torch.where(values < 0, torch.full((), math.pi, dtype=values.dtype), torch.zeros_like(values))
    return torch.where(torch.isnan(values), values, angle)


def _logit(values: Tensor, eps: float | None = None) -> Any:
    """Return log(x / (1 - x)) of numbers limited to eps and 1 - eps; NaN stays. Source: aten::logit."""
    if eps is None or not values.is_floating_point():
        return NotImplemented
    low, high = (torch.full((), number, dtype=values.dtype) for number in (eps, 1 - eps))
    bounded = torch.where(values < low, low, torch.where(values > high, high, values))
    return torch.log(bounded / (1 - bounded))


def _of_float64(written: Decomposition) -> Decomposition:
    """Return a decomposition of infinities for float64 alone, which the exporter rounds to float32 before."""
    return lambda values: written(values) if values.dtype is torch.float64 else NotImplemented


OF_ELEMENTS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **get_decompositions([aten.heaviside.default, aten.xlogy.Tensor]),
    aten.expm1.default: _expm1,
    aten.special_expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.log_sigmoid.default: _log_sigmoid,
    aten.logaddexp.default: _logaddexp,
    aten.logaddexp2.default: _logaddexp2,
    aten.atan2.default: _atan2,
    aten.angle.default: _angle,
    aten.logit.default: _logit,
    aten.isinf.default: _of_float64(lambda values: values.abs() == math.inf),
    aten.isposinf.default: _of_float64(lambda values: values == math.inf),
    aten.isneginf.default: _of_float64(lambda values: values == -math.inf),
}
"""Elementwise functions whose form in the exporter differs from PyTorch's kernel."""
