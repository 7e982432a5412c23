"""Attention as PyTorch's CPU kernel defines it, and its gradient, in products and exponentials."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Result [N, H, L, E] and, for the gradient, the logarithm of the sum of each row's exponentials [N, H, L].

    PyTorch's own decomposition gives the weights in place of the latter, which its gradient does not read.
    Source: aten::_scaled_dot_product_flash_attention_for_cpu.
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    result = torch.matmul(torch.softmax(scores, -1), value)
    # The kernel writes heads next to each other, and what comes behind it may view its result so.
    laid_out = result.transpose(1, 2).contiguous().transpose(1, 2)
    return laid_out, torch.logsumexp(scores, -1)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    Source: aten::_scaled_dot_product_flash_attention_for_cpu_backward.
    """
    weights = torch.exp(_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    of_weights = torch.matmul(grad_out, value.transpose(-2, -1))
    of_scores = weights * (of_weights - (grad_out * out).sum(-1, keepdim=True)) * _scale(query, scale)
    of_query = torch.matmul(of_scores, key)
    of_key = torch.matmul(of_scores.transpose(-2, -1), query)
    return of_query, of_key, torch.matmul(weights.transpose(-2, -1), grad_out)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = torch.matmul(query * _scale(query, scale), key.transpose(-2, -1))
    if is_causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        return torch.where(columns <= rows.unsqueeze(1), scores, float("-inf"))
    return scores if mask is None else scores + mask
