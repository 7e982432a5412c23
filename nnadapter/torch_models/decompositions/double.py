"""Operators on float64 tensors whose numbers ONNX keeps as float32, in attributes or as PyTorch's exporter writes them.

Written in others, which take tensors of float64 in their place. On other data types they stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

from nnadapter.torch_models.decompositions.elementwise import Decomposition


def _of_doubles(written: Decomposition) -> Decomposition:
    """The same for float64 alone."""

    @wraps(written)
    def decomposed(*arguments: Any, **options: Any) -> Any:
        operands = (*arguments, *options.values())
        doubles = (isinstance(operand, Tensor) and operand.dtype is torch.float64 for operand in operands)
        return written(*arguments, **options) if any(doubles) else NotImplemented

    return decomposed


def _added(first: Tensor, second: Any, *, alpha: float = 1) -> Any:
    """A sum, of which the second part is taken `alpha` times. Source: aten::add."""
    return NotImplemented if alpha == 1 else torch.add(first, second * alpha)


def _subtracted(first: Tensor, second: Any, *, alpha: float = 1) -> Any:
    """A difference, of which the second part is taken `alpha` times. Source: aten::sub."""
    return NotImplemented if alpha == 1 else torch.sub(first, second * alpha)


def _filled(values: Tensor, mask: Tensor, value: float) -> Tensor:
    """A number where a mask holds. Source: aten::masked_fill."""
    return torch.where(mask, torch.full((), value, dtype=values.dtype), values)


def _power(base: float, exponents: Tensor) -> Tensor:
    """Powers of a number. Source: aten::pow."""
    return torch.pow(torch.full((), base, dtype=exponents.dtype), exponents)


def _logarithm(base: float) -> Decomposition:
    """Return a logarithm of this base: the exporter rounds the logarithm of the base to float32."""
    return lambda values: torch.log(values) * (1 / math.log(base))


_OF_PYTORCH = get_decompositions(
    [
        aten.leaky_relu.default, aten.elu.default, aten.celu.default, aten.selu.default, aten.gelu.default,
        aten.hardswish.default, aten.hardsigmoid.default, aten.hardtanh.default, aten.softplus.default,
        aten.addcmul.default, aten.addcdiv.default, aten.addmm.default, aten.baddbmm.default,
        aten.native_layer_norm.default, aten.native_group_norm.default, aten.sinc.default,
    ]
)  # fmt: skip

OF_DOUBLES: Mapping[torch._ops.OpOverload, Decomposition] = {
    operator: _of_doubles(written)
    for operator, written in {
        **_OF_PYTORCH,
        aten.add.Tensor: _added,
        aten.sub.Tensor: _subtracted,
        aten.masked_fill.Scalar: _filled,
        aten.pow.Scalar: _power,
        aten.log2.default: _logarithm(2),
        aten.log10.default: _logarithm(10),
    }.items()
}
