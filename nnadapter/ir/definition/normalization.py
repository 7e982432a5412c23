"""Reference implementations: normalizations, softmax and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def per_channel(values: Any, rank: int) -> Any:
    """Reshape to broadcast one value per channel of `[N, C, …]`."""
    return values.reshape(-1, *[1] * (rank - 2)) if rank > 1 else values


def _batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    scale, bias, mean, variance = (per_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def _standardized(xp: Any, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centered = x - x.mean(axes, keepdims=True)
    return centered / xp.sqrt(xp.square(centered).mean(axes, keepdims=True) + epsilon)


def _layer_normalization(xp: Any, x: Any, scale: Any, bias: Any = None, *, axis: int, epsilon: float) -> Any:
    result = _standardized(xp, x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return result if bias is None else result + bias


def _instance_normalization(xp: Any, x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    result = _standardized(xp, x, tuple(range(2, x.ndim)), epsilon)
    return result * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


def _softmax(xp: Any, x: Any, axis: int) -> Any:
    raised = xp.exp(x - x.max(axis, keepdims=True, initial=-xp.inf))
    return raised / raised.sum(axis, keepdims=True)


def log_softmax(xp: Any, x: Any, axis: int) -> Any:
    """Return log(softmax(x)), without overflow."""
    shifted = x - x.max(axis, keepdims=True, initial=-xp.inf)
    return shifted - xp.log(xp.exp(shifted).sum(axis, keepdims=True))


def _rms(xp: Any, x: Any, scale: Any, axis: int, epsilon: float) -> Any:
    return x / xp.sqrt(xp.square(x).mean(tuple(range(axis, x.ndim)), keepdims=True) + epsilon) * scale


def _mean_variance(xp: Any, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    return (x - x.mean(tuple(axes), keepdims=True)) / (x.std(tuple(axes), keepdims=True) + epsilon)


def _local_response(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    sums = np.zeros_like(x)
    for channel in range(x.shape[1]):
        first, last = max(0, channel - (size - 1) // 2), min(x.shape[1] - 1, channel + size // 2)
        sums[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
    return x / (bias + alpha / size * sums) ** beta


def _lp(x: Array, axis: int, p: int) -> Any:
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def _likelihood(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str, ignore_index: int | None
) -> Any:
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        label = target[place]
        if label != ignore_index:
            weights[place] = 1 if weight is None else weight[label]
            losses[place] = -weights[place] * x[place[0], label, *place[1:]]
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weights.sum()}[reduction]


def _cross_entropy(x, target, weight=None, **attributes):  # type: ignore[no-untyped-def]
    shifted = x - x.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return [_likelihood(logarithms, target, weight, **attributes), logarithms]


SHARED: Mapping[str, Callable[..., Any]] = {
    "INSTANCE_NORMALIZATION": _instance_normalization,
    "LAYER_NORMALIZATION": _layer_normalization,
    "LOG_SOFTMAX": log_softmax,
    "MEAN_VARIANCE_NORMALIZATION": _mean_variance,
    "RMS_NORMALIZATION": _rms,
    "SOFTMAX": _softmax,
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "BATCH_NORMALIZATION": _batch_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "LP_NORMALIZATION": _lp,
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": _likelihood,
    "SOFTMAX_CROSS_ENTROPY_LOSS": _cross_entropy,
}

DOCS = """\
# *
input: [N, C, …]; channels are the last axis for layout NHWC.
scale: [C].
epsilon: Added to the variance, under the square root.
target: [N, d1, …]: the class at every position, from 0 to C - 1, or `ignore_index`.
weight: [C]: weight of each class; absent: 1.
reduction: `none`: a loss per position. `sum`: their sum. `mean`: their sum divided by the sum of the weights.
ignore_index: Positions with this target are ignored; the default -1 is not a class.
# BATCH_NORMALIZATION: Every channel shifted and scaled by statistics from training.
| output = (input - mean[c]) / sqrt(variance[c] + epsilon) * scale[c] + bias[c]
bias: [C], added at the end.
mean: [C], from training.
variance: [C], from training; not the standard deviation.
- No statistics are computed from the input: this is a scale and a shift per channel.
- Statistics may have another floating-point type than the input.
- The pass fuse_batch_normalization folds it into its producer, or replaces it by MUL and ADD.
example: counting(2, 2), [1.0, 10.0], [0.0, 1.0], [2.0, 3.0], [1.0, 4.0], epsilon=0.0
# LAYER_NORMALIZATION: Every item normalized to mean 0 and variance 1, over the last axes.
| output = (input - mean) / sqrt(variance + epsilon) * scale + bias
| mean, variance: over the axes from `axis` to the last; variance = mean of (input - mean)^2
input: Any rank.
scale: Broadcasts to the dimensions from `axis` on.
bias: Broadcasts to the dimensions from `axis` on; absent: 0.
axis: The first of the normalized axes. The axis, from 0 to rank - 1. Negative axes are rejected.
- The variance divides by the number of elements n, not by n - 1.
- All axes from `axis` on are normalized, not only that one.
- It has one output: if ONNX's Mean or InvStdDev is used, the converter decomposes the node.
example: [[1.0, 3.0], [0.0, 4.0]], [1.0, 2.0], [0.0, 10.0], axis=1, epsilon=0.0
# INSTANCE_NORMALIZATION: Every channel of every item normalized to mean 0 and variance 1.
| output = (input - mean[n, c]) / sqrt(variance[n, c] + epsilon) * scale[c] + bias[c]
| mean, variance: over the spatial axes
bias: [C].
- The bias is not optional.
- The variance divides by the number of elements n, not by n - 1.
- GroupNormalization becomes this operation between two RESHAPEs, with groups as channels.
example: [[[1.0, 3.0], [0.0, 4.0]]], [1.0, 2.0], [0.0, 10.0], epsilon=0.0
# LOCAL_RESPONSE_NORMALIZATION: Every element divided by a power of the sum of squares in adjacent channels.
| output[n, c, …] = input[n, c, …] / (bias + alpha / size * sum of input[n, i, …]^2) ^ beta
| i from max(0, c - floor((size - 1) / 2)) to min(C - 1, c + floor(size / 2))
size: Number of summed channels, 1 or more.
alpha: Factor of the mean of squares.
beta: The power.
bias: Added before the power.
- alpha is divided by size, unlike in NNAPI.
- At the edges fewer channels are summed, but alpha is still divided by size.
- An even size extends one channel further up than down.
FLOPs: size + 5 per output element
example: [[[[1.0]], [[2.0]], [[3.0]]]], size=3, alpha=3.0, beta=1.0
# SOFTMAX: Exponentials along an axis, divided by their sum.
| output[…, i, …] = exp(input[…, i, …]) / sum over j of exp(input[…, j, …])
input: The scores.
- Subtract the maximum before exp: scores of 100 overflow otherwise.
- Along one axis only. Before opset 13, ONNX flattens all axes from its axis on: the converter reshapes.
- A row of only -inf gives NaN.
example: [[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]], axis=1
# LOG_SOFTMAX: The logarithm of SOFTMAX.
| output[…, i, …] = input[…, i, …] - log(sum over j of exp(input[…, j, …]))
input: The scores.
- Subtract the maximum before exp, and do not compute the logarithm of SOFTMAX, which may be 0.
example: [[1.0, 2.0, 3.0]], axis=1
# RMS_NORMALIZATION: Every item divided by its root mean square, over the last axes.
| output = input / sqrt(mean of input^2 over the axes from `axis` to the last + epsilon) * scale
input: Any rank.
scale: Broadcasts to the dimensions of `input`.
axis: The first of the axes of the mean. The axis, from 0 to rank - 1. Negative axes are rejected.
epsilon: Added to the mean of squares, under the square root.
-> output: The data type of `scale`; dimensions and layout of `input`.
- No mean is subtracted, and there is no bias.
- The result has the data type of the scale, which may differ from the input's.
example: [[3.0, 4.0]], [1.0, 10.0], axis=1, epsilon=0.0
# LP_NORMALIZATION: Elements along an axis, divided by their norm.
| output[…, i, …] = input[…, i, …] / (sum over j of |input[…, j, …]| ^ p) ^ (1 / p)
input: The numbers.
p: 1: the sum of absolute values. 2: the square root of the sum of squares.
- If the norm is 0, the result is 0, not NaN.
- There is no epsilon.
example: [[3.0, 4.0], [0.0, 0.0]], axis=1
# MEAN_VARIANCE_NORMALIZATION: Elements normalized to mean 0 and standard deviation 1 over any axes.
| output = (input - mean) / (deviation + epsilon)
| mean: over `axes`; deviation = sqrt(mean of (input - mean)^2 over `axes`)
input: The numbers.
axes: Axes of mean and deviation: ascending, at least one, from 0 to rank - 1.
epsilon: Added to the deviation.
- epsilon is added to the deviation, outside the square root. Other normalizations add it inside.
- The deviation divides by the number of elements n, not by n - 1.
example: [[1.0, 3.0], [0.0, 4.0]], axes=(1,)
# NEGATIVE_LOG_LIKELIHOOD_LOSS: Classification loss from logarithms of probabilities.
| loss[n, d…] = -weight[t] * input[n, t, d…] with t = target[n, d…]; 0 where t = ignore_index
| output = loss, its sum, or its sum / sum of weight[t]
input: [N, C, d1, …]: logarithms of probabilities.
-> output: The data type of `input`; [N, d1, …] with reduction `none`, else a scalar.
- `mean` divides by the sum of the weights of the targets, not by their number.
- If every position is ignored, the mean is NaN.
- Classes are axis 1, not the last one.
- It computes no logarithm: the input contains logarithms.
FLOPs: 4 per target
example: [[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]], [0, 2, -1], [1.0, 1.0, 3.0]
# SOFTMAX_CROSS_ENTROPY_LOSS: Classification loss from scores.
| log_probabilities[n, c, d…] = input[n, c, d…] - log(sum over k of exp(input[n, k, d…]))
| output as NEGATIVE_LOG_LIKELIHOOD_LOSS of log_probabilities
input: [N, C, d1, …]: scores.
-> output: The data type of `input`; [N, d1, …] with reduction `none`, else a scalar.
-> log_probabilities: Data type and dimensions of `input`.
- `mean` divides by the sum of the weights of the targets, not by their number.
- If every position is ignored, the mean is NaN.
- Classes are axis 1, not the last one.
- Subtract the maximum before exp.
- There are always two outputs.
example: [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [0, 2, -1], reduction='none'
"""
