"""Decompositions of layers and their gradients: convolution, pooling, normalization, dropout, LSTM, attention.

Averages and their gradients are products with a matrix per axis; the matrix folds to a constant for static shapes.

A convolution of an image x with a filter w is y[t] = sum over k of w[k] x[stride t + dilation k - pad]. For a gradient
g of y:

- the gradient of x is a transposed convolution of g with w;
- the gradient of w is dw[k] = sum over t of g[t] x[dilation k + stride t - pad]: a convolution of x with g.

Stride and dilation are exchanged, and so are batch and channels, because the sum runs over the batch. A transposed
convolution exchanges x and y. Dropout draws numbers in a separate operator, which alone runs in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import lstm_impl
from torch._prims_common import suggest_memory_format
from torch.nn import functional
from torch.ops import aten

from nnadapter.torch.layouts import inverse, order_of


def spread(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return an image's gradient from the gradient of its averages (`gathered`); axes have matrices [result, size]."""
    return _along_axes(gradient, matrices)


def gathered(image: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return averages [..., results…] of an image; each axis has a matrix [result, size] of weights."""
    return _along_axes(image, [matrix.t() for matrix in matrices])


def _along_axes(values: Tensor, factors: Sequence[Tensor]) -> Tensor:
    for axis, factor in zip(range(values.dim() - 1, -1, -1), reversed(factors), strict=False):
        last = values.dim() - 1
        values = values.transpose(axis, last) if axis != last else values
        values = torch.matmul(values, factor)
        values = values.transpose(axis, last) if axis != last else values
    return values


def means(size: int, starts: Tensor, ends: Tensor, counts: Tensor, like: Tensor) -> Tensor:
    """Return means over ranges as a matrix [results, size]; `starts`, `ends` and divisors `counts` are [results, 1]."""
    places = torch.arange(size, device=like.device)
    inside = (places >= starts) & (places < ends)
    return inside.to(like.dtype) / counts.to(like.dtype)


def convolution_backward(
    grad_output: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return gradients of image [N, C, …], weight and bias [O], if in `output_mask`.

    Source: aten::convolution_backward.
    """
    rank = image.dim() - 2
    moves = tuple(tuple(sizes) * (rank if len(sizes) == 1 else 1) for sizes in (stride, padding, dilation))
    of_input = of_weight = None
    if output_mask[0]:
        gradient = _transposed_input_gradient if transposed else _input_gradient
        of_input = gradient(grad_output, image, weight, moves, groups)
    if output_mask[1]:
        image, result = (grad_output, image) if transposed else (image, grad_output)
        of_weight = _weight_gradient(image, result, weight, moves, groups)
    of_bias = aten.sum.dim_IntList(grad_output, [0, *range(2, rank + 2)]) if output_mask[2] else None
    return of_input, of_weight, of_bias


Moves = tuple[tuple[int, ...], ...]


def _input_gradient(gradient: Tensor, image: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    """Return the image's gradient; output padding extends it to elements that no window reached."""
    reached = [
        (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
        for size, kernel, stride, padding, dilation in zip(gradient.shape[2:], weight.shape[2:], *moves, strict=True)
    ]
    output_padding = [size - covered for size, covered in zip(image.shape[2:], reached, strict=True)]
    return _convolution(gradient, weight, moves, groups, output_padding=output_padding)


def _transposed_input_gradient(gradient: Tensor, image: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    return _cropped(_convolution(gradient, weight, moves, groups), image.shape[2:])


def _weight_gradient(image: Tensor, result: Tensor, weight: Tensor, moves: Moves, groups: int) -> Tensor:
    stride, padding, dilation = moves
    filters = _batch_and_channels_exchanged(result, 1)
    sums = _convolution(_batch_and_channels_exchanged(image, groups), filters, (dilation, padding, stride), groups)
    gradient: Tensor = aten.transpose.int(_cropped(sums, weight.shape[2:]), 0, 1)
    return gradient.contiguous(memory_format=suggest_memory_format(weight))


def _batch_and_channels_exchanged(image: Tensor, groups: int) -> Tensor:
    """Exchange batch and channels: [N, groups * C, …] becomes [C, groups * N, …]."""
    if groups == 1:
        return aten.transpose.int(image, 0, 1)
    batch, channels, *sizes = image.shape
    grouped = aten.reshape.default(image, [batch, groups, channels // groups, *sizes])
    exchanged = aten.permute.default(grouped, [2, 1, 0, *range(3, grouped.dim())])
    return aten.reshape.default(exchanged, [channels // groups, groups * batch, *sizes])


def _cropped(image: Tensor, sizes: Sequence[int]) -> Tensor:
    for axis, size in enumerate(sizes, 2):
        if image.shape[axis] != size:
            image = aten.slice.Tensor(image, axis, 0, size)
    return image


def _convolution(
    image: Tensor, weight: Tensor, moves: Moves, groups: int, output_padding: Sequence[int] | None = None
) -> Tensor:
    stride, padding, dilation = moves
    transposed, extra = output_padding is not None, output_padding or [0] * len(stride)
    result: Tensor = aten.convolution.default(image, weight, None, stride, padding, dilation, transposed, extra, groups)
    return result


def max_pool_with_indices_backward(
    grad_output: Tensor,
    image: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Decompose aten::max_pool2d_with_indices_backward."""
    rank = len(kernel_size)
    steps = zip(*(_per_axis(sizes, rank) for sizes in (kernel_size, stride or kernel_size, dilation)), strict=True)
    is_disjoint = all((size - 1) * step + 1 <= move for size, move, step in steps)
    return _scattered(grad_output, image, indices, rank, is_disjoint)


def adaptive_max_pool_backward(grad_output: Tensor, image: Tensor, indices: Tensor) -> Tensor:
    """Decompose aten::adaptive_max_pool2d_backward."""
    return _scattered(grad_output, image, indices, 2, False)


def _scattered(gradient: Tensor, image: Tensor, indices: Tensor, rank: int, is_disjoint: bool) -> Tensor:
    planes = image.flatten(-rank)
    zeros, places, values = torch.zeros_like(planes), indices.flatten(-rank), gradient.flatten(-rank)
    scattered = zeros.scatter(-1, places, values) if is_disjoint else zeros.scatter_add(-1, places, values)
    return scattered.view(image.shape)


def average_pool_backward(
    grad_output: Tensor,
    image: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Decompose aten::avg_pool2d_backward."""
    rank = len(kernel_size)
    moves = zip(*(_per_axis(sizes, rank) for sizes in (kernel_size, stride or kernel_size, padding)), strict=True)
    matrices = [
        _windows(result, size, move, (count_include_pad, divisor_override is not None), grad_output)
        for result, size, move in zip(grad_output.shape[-rank:], image.shape[-rank:], moves, strict=True)
    ]
    gradient = _lying_as(image, spread(grad_output, matrices))
    return gradient if divisor_override is None else gradient / divisor_override


def _windows(result: int, size: int, move: Sequence[int], counting: tuple[bool, bool], like: Tensor) -> Tensor:
    """Return a matrix [result, size] that averages windows along an axis.

    `move` is (kernel, stride, padding), and `counting` is (includes padding, sums without division).
    """
    kernel, stride, padding = move
    starts = (torch.arange(result, device=like.device) * stride - padding).unsqueeze(1)
    ends = (starts + kernel).clamp(max=size + padding)
    include_pad, only_sums = counting
    counts = ends - starts if include_pad else ends.clamp(max=size) - starts.clamp(min=0)
    return means(size, starts, ends, torch.ones_like(counts) if only_sums else counts, like)


def adaptive_average_pool(image: Tensor, output_size: Sequence[int]) -> Tensor:
    """Decompose aten::_adaptive_avg_pool2d."""
    return _lying_as(image, gathered(image, _stretches(output_size, image.shape[-len(output_size) :], image)))


def adaptive_average_pool_backward(grad_output: Tensor, image: Tensor, rank: int = 2) -> Tensor:
    """Decompose aten::_adaptive_avg_pool2d_backward."""
    return _lying_as(image, spread(grad_output, _stretches(grad_output.shape[-rank:], image.shape[-rank:], image)))


def adaptive_average_volume_pool_backward(grad_output: Tensor, image: Tensor) -> Tensor:
    """Decompose aten::_adaptive_avg_pool3d_backward."""
    return adaptive_average_pool_backward(grad_output, image, 3)


def _lying_as(image: Tensor, values: Tensor) -> Tensor:
    return values.clone(memory_format=suggest_memory_format(image))  # for empty tensors too


def _stretches(results: Sequence[int], sizes: Sequence[int], like: Tensor) -> list[Tensor]:
    matrices = []
    for result, size in zip(results, sizes, strict=True):
        numbers = torch.arange(result, device=like.device).unsqueeze(1)
        starts = torch.div(numbers * size, result, rounding_mode="floor")
        ends = torch.div((numbers + 1) * size + (result - 1), result, rounding_mode="floor")
        matrices.append(means(size, starts, ends, ends - starts, like))
    return matrices


def _per_axis(values: Sequence[int], rank: int) -> Sequence[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def batch_norm_functional(
    values: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Normalize, by batch statistics in training. Source: aten::_native_batch_norm_legit_functional."""
    if not training:
        operator = aten._native_batch_norm_legit_no_training.default
        result = operator(values, weight, bias, running_mean, running_var, momentum, eps)[0]
        return result, running_mean.new_zeros(0), running_mean.new_zeros(0), running_mean, running_var
    count = values.numel() // values.shape[1]
    result, mean, variance, deviation = _normalized(values, weight, bias, eps)
    mean, variance, deviation = (statistic.to(running_mean.dtype) for statistic in (mean, variance, deviation))
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_variance = running_var * (1 - momentum) + variance * (momentum * count / (count - 1))
    return result, mean, deviation, new_mean, new_variance


def batch_norm(
    values: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize by running statistics, and return empty batch statistics. PyTorch decomposes the training form.

    Source: aten::native_batch_norm.
    """
    if training or running_mean is None or running_var is None:
        return NotImplemented
    operator = aten._native_batch_norm_legit_no_training.default
    result = operator(values, weight, bias, running_mean, running_var, momentum, eps)[0]
    return result, running_mean.new_zeros(0), running_mean.new_zeros(0)


def batch_norm_without_statistics(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose aten::_native_batch_norm_legit.no_stats."""
    result, mean, _, deviation = _normalized(values, weight, bias, eps)
    saved = values.dtype if weight is None else weight.dtype
    return result, mean.to(saved), deviation.to(saved)


def _normalized(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = values.dtype
    values = values.float() if dtype in (torch.float16, torch.bfloat16) else values
    axes = [0, *range(2, values.dim())]
    channels = [-1, *[1] * (values.dim() - 2)]
    mean = values.mean(axes, keepdim=True)
    centered = values - mean
    variance = (centered * centered).mean(axes)
    deviation = torch.rsqrt(variance + eps)
    factor = deviation if weight is None else deviation * weight
    result = centered * factor.view(channels)
    result = result if bias is None else result + bias.view(channels)
    return result.to(dtype), mean.view(-1), variance, deviation


def weight_norm_backward(
    grad_weight: Tensor, direction: Tensor, length: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Return gradients of direction and length, for weight `length * direction / norms`.

    Source: aten::_weight_norm_interface_backward.
    """
    axes = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    along = (grad_weight * direction).sum(axes, keepdim=True)
    norms = norms.view(along.shape)
    of_direction = (length.view(along.shape) / norms) * (grad_weight - direction * (along / (norms * norms)))
    return of_direction, (along / norms).view(length.shape)


def native_dropout(values: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return the values after dropout, and the mask of retained elements. Source: aten::native_dropout."""
    if train is False or p == 0:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
    mask = _chosen(values, 1 - p) != 0
    return torch.where(mask, values * (1 / (1 - p)), 0.0), mask


def _chosen(values: Tensor, p: float) -> Tensor:
    order = order_of(values)
    if order is None:
        return aten.bernoulli.p(values, p)
    chosen: Tensor = aten.bernoulli.p(values.permute(list(order)), p)
    return chosen.permute(inverse(order))


_DROPOUT, _TRAIN = 2, 3


def lstm(sequences: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *options: Any) -> Any:
    """Unroll LSTMs with projections. Source: aten::lstm.input."""
    state, cell = states
    if state.shape[-1] == cell.shape[-1] or (options[_TRAIN] and options[_DROPOUT]):
        return NotImplemented
    return lstm_impl(sequences, states, weights, *options)


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
    """Return the result [N, H, L, E] and log-sum-exps [N, H, L].

    Source: aten::_scaled_dot_product_flash_attention_for_cpu.
    """
    key, value = (_for_each_head(tensor, query) for tensor in (key, value))
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights, sums = torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    if attn_mask is not None:  # a fully masked row yields 0
        row_mask = attn_mask.amax(-1, keepdim=True) != float("-inf")
        weights, sums = torch.where(row_mask, weights, 0.0), torch.where(row_mask.squeeze(-1), sums, 0.0)
    result = torch.matmul(weights, value)
    # The kernel's result has heads next to each other, and later operators may view it so.
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
    """Compute attention of any rank, bool masks and fully masked rows, which the exporter does not support.

    Source: aten::scaled_dot_product_attention.
    """
    if dropout_p:
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
    if query.dim() != 4:
        math = aten._scaled_dot_product_attention_math.default
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
    """Decompose aten::_scaled_dot_product_flash_attention_for_cpu_backward."""
    shared, (key, value) = key.shape, (_for_each_head(tensor, query) for tensor in (key, value))
    weights = torch.exp(_scores(query, key, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    of_weights = torch.matmul(grad_out, value.transpose(-2, -1))
    of_scores = weights * (of_weights - (grad_out * out).sum(-1, keepdim=True)) * _scale(query, scale)
    of_query = torch.matmul(of_scores, key)
    of_key = torch.matmul(of_scores.transpose(-2, -1), query)
    of_value = torch.matmul(weights.transpose(-2, -1), grad_out)
    return of_query, _over_heads(of_key, shared), _over_heads(of_value, shared)


def _for_each_head(shared: Tensor, query: Tensor) -> Tensor:
    """Repeat shared heads: [N, H / n, S, E] becomes [N, H, S, E]."""
    times = query.shape[1] // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, 1)


def _over_heads(gradient: Tensor, shared: Sequence[int]) -> Tensor:
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


_OF_ROWS, _OF_KEYS = 0, 1
"""Values of `mask_type` for masks [L, S] and [N, S]; other masks are [N, H, L, S]."""


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
    """Attend; nonzero elements of `mask` are masked out. Source: aten::_native_multi_head_attention."""
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
    """Decompose aten::_transformer_encoder_layer_fwd."""

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
    if mask_type == _OF_KEYS:
        return mask[:, None, None, :]
    return mask[None, None] if mask_type == _OF_ROWS else mask
