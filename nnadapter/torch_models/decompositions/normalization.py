"""Normalization of batches in training, and of weights, in plain arithmetic.

PyTorch's exporter writes that of batches as at inference, with the running statistics, which is another function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
    """Result, saved mean, saved 1 / deviation, and the new running mean and variance.

    Outside of training the last four are empty, empty, and the running statistics as they were. Source:
    aten::_native_batch_norm_legit_functional.
    """
    if not training:
        operator = torch.ops.aten._native_batch_norm_legit_no_training.default
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
    """Return the result, saved mean and saved 1 / deviation; the last two are empty outside of training.

    In training it changes the running statistics, and so is written by PyTorch. Source: aten::native_batch_norm.
    """
    if training or running_mean is None or running_var is None:
        return NotImplemented
    operator = torch.ops.aten._native_batch_norm_legit_no_training.default
    result = operator(values, weight, bias, running_mean, running_var, momentum, eps)[0]
    return result, running_mean.new_zeros(0), running_mean.new_zeros(0)


def batch_norm_without_statistics(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, saved mean and saved 1 / deviation. Source: aten::_native_batch_norm_legit.no_stats."""
    result, mean, _, deviation = _normalized(values, weight, bias, eps)
    saved = values.dtype if weight is None else weight.dtype
    return result, mean.to(saved), deviation.to(saved)


def _normalized(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, in the data type of the values, and mean, variance and 1 / deviation of every channel."""
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
    """Gradients of direction and length, of which `length * direction / norms` is the weight.

    Source: aten::_weight_norm_interface_backward.
    """
    axes = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    along = (grad_weight * direction).sum(axes, keepdim=True)
    norms = norms.view(along.shape)
    of_direction = (length.view(along.shape) / norms) * (grad_weight - direction * (along / (norms * norms)))
    return of_direction, (along / norms).view(length.shape)
