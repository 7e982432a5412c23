"""Dropout, with the random choice as an operation of its own.

So only the choice has to be made where PyTorch's random numbers are, and results are those of PyTorch for its seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnadapter.torch_models.layouts import order_of


def native_dropout(values: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The values with elements dropped by chance `p`, and which were kept. Source: aten::native_dropout."""
    if train is False or p == 0:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
    mask = _chosen(values, 1 - p) != 0
    return torch.where(mask, values * (1 / (1 - p)), 0.0), mask


def _chosen(values: Tensor, p: float) -> Tensor:
    """Ones by chance `p`, drawn in the order in which the values lie in memory, as PyTorch does."""
    order = order_of(values)
    if order is None:
        return torch.ops.aten.bernoulli.p(values, p)
    back = sorted(range(len(order)), key=order.__getitem__)
    chosen: Tensor = torch.ops.aten.bernoulli.p(values.permute(list(order)), p)
    return chosen.permute(back)
