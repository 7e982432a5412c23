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
        operand.is_floating_point() if isinstance(operand, Tensor) else isinstance(operand, float)
        for operand in (dividend, divisor)
    ]
    if rounding_mode is None:
        return NotImplemented
    if not any(kinds):
        return _whole_quotient(dividend, divisor, rounding_mode)
    if rounding_mode != "floor":
        return NotImplemented
    kind = torch.result_type(dividend, divisor)
    top = dividend.to(kind)
    bottom = divisor.to(kind) if isinstance(divisor, Tensor) else torch.full((), divisor, dtype=kind)
    residual = torch.fmod(top, bottom)
    quotient = (top - residual) / bottom
    quotient = torch.where((residual != 0) & ((bottom < 0) != (residual < 0)), quotient - 1, quotient)
    down = quotient.floor()
    down = torch.where(quotient - down > 0.5, down + 1, down)
    floored = torch.where(quotient != 0, down, torch.zeros_like(quotient))
    return torch.where(bottom == 0, top / bottom, floored)


def _whole_quotient(dividend: Tensor, divisor: Any, rounding_mode: str) -> Tensor:
    """Return quotients of integers; PyTorch's exporter computes them in float32."""
    down = torch.ops.aten.floor_divide.default(dividend, divisor)
    if rounding_mode == "floor":
        return down
    residual = dividend - down * divisor
    return torch.where((residual != 0) & (down < 0), down + 1, down)


def floor_divided(dividend: Tensor, divisor: Any) -> Any:
    """As `divided`, rounded down. Source: aten::floor_divide."""
    is_real = isinstance(divisor, float) or (isinstance(divisor, Tensor) and divisor.is_floating_point())
    if not (dividend.is_floating_point() or is_real):
        return NotImplemented
    return divided(dividend, divisor, rounding_mode="floor")


def remainder(dividend: Any, divisor: Any) -> Any:
    """Return remainders with the sign of the divisor, of the exact quotient. Source: aten::remainder."""
    kind = torch.result_type(dividend, divisor)
    if not kind.is_floating_point:
        return NotImplemented
    top, bottom = (
        operand.to(kind) if isinstance(operand, Tensor) else torch.full((), operand, dtype=kind)
        for operand in (dividend, divisor)
    )
    residual = torch.fmod(top, bottom)
    return torch.where((residual != 0) & ((bottom < 0) != (residual < 0)), residual + bottom, residual)


def round_decimals(values: Tensor, *, decimals: int = 0) -> Any:
    """Return numbers rounded to tens, hundreds and so on, by an exact power of ten. Source: aten::round.decimals."""
    if decimals >= 0 or not values.is_floating_point():
        return NotImplemented
    power = 10.0**-decimals
    return torch.round(values / power) * power


def multiplied_and_added(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """A product and a third number, added. Source: prims::fma, which steps of optimizers come to."""
    return first * second + third
