"""Products of matrices that are added to a tensor, which a factor of 0 leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.ops import aten


def _without_sum(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Return a decomposition for a first factor of 0: PyTorch does not read the tensor, which may have NaN."""

    def written(added: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if beta != 0:
            return NotImplemented
        result = product(first, second)
        return result if alpha == 1 else result * alpha

    return written


OF_PRODUCTS: Mapping[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.addmm.default: _without_sum(torch.mm),
    aten.addmv.default: _without_sum(torch.mv),
    aten.baddbmm.default: _without_sum(torch.bmm),
    aten.addbmm.default: _without_sum(lambda first, second: torch.bmm(first, second).sum(0)),
}
"""Products and a sum, where the tensor that is added is left out."""
