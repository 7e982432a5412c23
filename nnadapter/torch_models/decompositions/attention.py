"""Attention as PyTorch's CPU kernel defines it, and its gradient, in products and exponentials."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

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
    key, value = (_for_each_head(tensor, query) for tensor in (key, value))
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights, sums = torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    if attn_mask is not None:  # a row that is masked whole gives 0, and gradients of 0
        row_mask = attn_mask.amax(-1, keepdim=True) != float("-inf")
        weights, sums = torch.where(row_mask, weights, 0.0), torch.where(row_mask.squeeze(-1), sums, 0.0)
    result = torch.matmul(weights, value)
    # The kernel writes heads next to each other, and what comes behind it may view its result so.
    laid_out = result.transpose(1, 2).contiguous().transpose(1, 2)
    return laid_out, sums


def attention_of_any_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Result [..., L, E], as exported programs have it: of any rank, and masked by truths, too.

    PyTorch's exporter takes four axes, and gives NaN for rows that are masked whole.
    Source: aten::scaled_dot_product_attention.
    """
    if dropout_p:
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
    if query.dim() != 4:
        math = torch.ops.aten._scaled_dot_product_attention_math.default
        return math(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return attention(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


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
    shared, (key, value) = key.shape, (_for_each_head(tensor, query) for tensor in (key, value))
    weights = torch.exp(_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    of_weights = torch.matmul(grad_out, value.transpose(-2, -1))
    of_scores = weights * (of_weights - (grad_out * out).sum(-1, keepdim=True)) * _scale(query, scale)
    of_query = torch.matmul(of_scores, key)
    of_key = torch.matmul(of_scores.transpose(-2, -1), query)
    of_value = torch.matmul(weights.transpose(-2, -1), grad_out)
    return of_query, _over_heads(of_key, shared), _over_heads(of_value, shared)


def _for_each_head(shared: Tensor, query: Tensor) -> Tensor:
    """Keys or values [N, H / n, S, E] repeated for the n heads of the query that share them, [N, H, S, E]."""
    times = query.shape[1] // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, 1)


def _over_heads(gradient: Tensor, shared: Sequence[int]) -> Tensor:
    """The gradient [N, H, S, E] of what was repeated, summed over heads that share it."""
    heads, kv_heads = gradient.shape[1], shared[1]
    return gradient if heads == kv_heads else gradient.unflatten(1, (kv_heads, heads // kv_heads)).sum(2)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = torch.matmul(query * _scale(query, scale), key.transpose(-2, -1))
    if is_causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        return torch.where(columns <= rows.unsqueeze(1), scores, float("-inf"))
    return scores if mask is None else scores + mask
