"""Signs and quotients of floating-point numbers as PyTorch has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sign(values: Tensor) -> Any:
    """1, 0 or -1; 0 for NaN, which ONNX keeps. Source: aten::sign."""
    if not values.is_floating_point():
        return NotImplemented
    return (values > 0).to(values.dtype) - (values < 0).to(values.dtype)


def divided(dividend: Tensor, divisor: Any, *, rounding_mode: str | None) -> Any:
    """Quotients; rounded down they are made of the remainder, as in Python: 1 // 0.1 is 9. Source: aten::div."""
    kinds = [
        each.is_floating_point() if isinstance(each, Tensor) else isinstance(each, float)
        for each in (dividend, divisor)
    ]
    if rounding_mode != "floor" or not any(kinds):
        return NotImplemented
    kind = torch.result_type(dividend, divisor)
    top = dividend.to(kind)
    bottom = divisor.to(kind) if isinstance(divisor, Tensor) else torch.full((), divisor, dtype=kind)
    rest = torch.fmod(top, bottom)
    quotient = (top - rest) / bottom
    quotient = torch.where((rest != 0) & ((bottom < 0) != (rest < 0)), quotient - 1, quotient)
    down = quotient.floor()
    down = torch.where(quotient - down > 0.5, down + 1, down)
    whole = torch.where(quotient != 0, down, torch.zeros_like(quotient))
    return torch.where(bottom == 0, top / bottom, whole)


def floor_divided(dividend: Tensor, divisor: Any) -> Any:
    """As `divided`, rounded down. Source: aten::floor_divide."""
    return divided(dividend, divisor, rounding_mode="floor")


def multiplied_and_added(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """A product and a third number, added. Source: prims::fma, which steps of optimizers come to."""
    return first * second + third
