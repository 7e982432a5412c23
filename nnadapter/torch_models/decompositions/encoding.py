"""What PyTorch runs as one operator at inference: attention of several heads with its projections, and encoder layers.

Masks are taken as its CPU kernels take them: what is not zero is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

_OF_ROWS, _OF_KEYS = 0, 1
"""What `mask_type` says of a mask: [L, S], or [N, S]; else it is [N, H, L, S]."""


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Result [N, L, E], and the weights [N, L, S] or [N, H, L, S]; these are empty where nobody needs them.

    Source: aten::_native_multi_head_attention.
    """
    projections = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    heads = [functional.linear(*projection).unflatten(-1, (num_head, -1)).transpose(1, 2) for projection in projections]
    scores = torch.matmul(heads[0] / sqrt(embed_dim // num_head), heads[1].transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(_spread(mask.to(torch.bool), mask_type), float("-inf"))
    weights = torch.softmax(scores, -1)
    result = functional.linear(torch.matmul(weights, heads[2]).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, query.new_zeros(0)
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Rows [N, L, E], attended and fed forward. Source: aten::_transformer_encoder_layer_fwd."""

    def attend(rows: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(rows, rows, rows, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def feed(rows: Tensor) -> Tensor:
        inner = functional.linear(rows, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else torch.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    first = _norm(embed_dim, norm_weight_1, norm_bias_1, eps)
    second = _norm(embed_dim, norm_weight_2, norm_bias_2, eps)
    if norm_first:
        attended = src + attend(first(src))
        return attended + feed(second(attended))
    attended = first(src + attend(src))
    return second(attended + feed(attended))


def _norm(width: int, weight: Tensor, bias: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    return lambda rows: functional.layer_norm(rows, (width,), weight, bias, eps)


def _spread(mask: Tensor, mask_type: int | None) -> Tensor:
    """A mask that goes with scores [N, H, L, S]."""
    if mask_type == _OF_KEYS:
        return mask[:, None, None, :]
    return mask[None, None] if mask_type == _OF_ROWS else mask
