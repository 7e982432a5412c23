"""Normalizations, softmax, and losses.

FLOPs per element: 2 for batch normalization, otherwise the steps of the formula. Losses compare scores
[N, C, d1, …] with classes [N, d1, …]. Targets equal to `ignore_index` do not count, not even in the mean; -1 ignores
no target.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import (
    Row,
    along_axis,
    check_at_least,
    check_axes,
    check_axis,
    check_broadcasts_to,
    check_vector,
    family,
    like,
    per_input,
)
from nnadapter.ir.operations.windows import channel_axis

row = family(cost="normalization")


def _per_channel(first: OperandType, *parameters: OperandType, epsilon: float) -> OperandType:
    channels = first.dimensions[channel_axis(first)]
    names = ("scale", "bias", "mean", "variance")
    for name, parameter in zip(names, parameters, strict=False):
        check_vector(name, parameter, channels)
    return like(first)


def _layer(first: OperandType, *parameters: OperandType | None, axis: int, epsilon: float) -> OperandType:
    normalized = first.dimensions[check_axis(axis, first.rank) :]
    for name, parameter in zip(("scale", "bias"), parameters, strict=False):
        if parameter is not None:
            check_broadcasts_to(name, parameter.dimensions, normalized)
    return like(first)


def _local_response(first: OperandType, size: int, **attributes: object) -> OperandType:
    check_at_least(1, size=(size,))
    return like(first)


def _root_mean_square(first: OperandType, scale: OperandType, axis: int, epsilon: float) -> OperandType:
    check_axis(axis, first.rank)
    check_broadcasts_to("scale", scale.dimensions, first.dimensions)
    return like(first, dtype=scale.dtype)


def _power_norm(first: OperandType, axis: int, p: int) -> OperandType:
    check_axis(axis, first.rank)
    if p not in (1, 2):
        raise InvalidModelError(f"p is {p}, expected 1 or 2")
    return like(first)


def _deviation(first: OperandType, axes: Sequence[int], epsilon: float) -> OperandType:
    check_axes(axes, first.rank)
    return like(first)


def _loss(
    first: OperandType, target: OperandType, weight: OperandType | None = None, *, reduction: str, ignore_index: int
) -> OperandType:
    batch, classes, *spatial = first.dimensions
    if target.dimensions != (batch, *spatial):
        raise InvalidModelError(f"target has dimensions {list(target.dimensions)}, expected {[batch, *spatial]}")
    check_vector("weight", weight, classes)
    return OperandType(first.dtype, target.dimensions if reduction == "none" else ())


def _softmax_loss(first: OperandType, *others: OperandType, **attributes: object) -> tuple[OperandType, ...]:
    return _loss(first, *others, **attributes), OperandType(first.dtype, first.dimensions)  # type: ignore[arg-type]


_LOSS = (
    "input[2..]: float, target: index, weight?: float as input; "
    "reduction: string(none|sum|mean) = mean, ignore_index: int = -1"
)

ROWS: tuple[Row, ...] = (
    # ONNX allows the statistics another floating-point type than the input.
    row(
        "BATCH_NORMALIZATION(input[2..]: float, scale: float, bias: float, mean: float, variance: float; "
        "epsilon: float = 1e-5)",
        _per_channel,
        2,
        "NNADAPTER_BATCH_NORMALIZATION; ONNX BatchNormalization-15 at inference",
        cost="elementwise",
    ),
    row(
        "LAYER_NORMALIZATION(input[1..]: float, scale: float as input, bias?: float as input; "
        "axis: int, epsilon: float = 1e-5)",
        _layer,
        7,
        "NNADAPTER_LAYER_NORMALIZATION; ONNX LayerNormalization-17, over every axis from `axis` on",
    ),
    row(
        "INSTANCE_NORMALIZATION(input[3..]: float, scale: float as input, bias: float as input; epsilon: float = 1e-5)",
        _per_channel,
        7,
        "NNAPI INSTANCE_NORMALIZATION; ONNX InstanceNormalization-6",
    ),
    row(
        "LOCAL_RESPONSE_NORMALIZATION(input[2..]: float; "
        "size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0)",
        _local_response,
        # square, sum over the window, multiply-add, power, divide
        lambda outputs, first, size, **attributes: outputs[0].size * (size + 5),
        "NNAPI LOCAL_RESPONSE_NORMALIZATION; ONNX LRN-13, across channels",
    ),
    row(
        "SOFTMAX(input[1..]: float; axis: int)",
        along_axis,
        5,
        "NNAPI SOFTMAX; ONNX Softmax-13, along one axis",
        quantization="real",
    ),
    row(
        "LOG_SOFTMAX(input[1..]: float; axis: int)",
        along_axis,
        5,
        "NNAPI LOG_SOFTMAX; ONNX LogSoftmax-13, along one axis",
        quantization="real",
    ),
    row(
        "RMS_NORMALIZATION(input[1..]: float, scale: float; axis: int, epsilon: float = 1e-5)",
        _root_mean_square,
        4,
        "ONNX RMSNormalization-23, over every axis from `axis` on",
    ),
    row(
        "LP_NORMALIZATION(input[1..]: float; axis: int, p: int = 2)",
        _power_norm,
        3,
        "NNADAPTER_LP_NORMALIZATION; NNAPI L2_NORMALIZATION; ONNX LpNormalization-22; zeros where the norm is 0",
    ),
    row(
        "MEAN_VARIANCE_NORMALIZATION(input[1..]: float; axes: ints, epsilon: float = 1e-9)",
        _deviation,
        5,
        "ONNX MeanVarianceNormalization-13; epsilon is added to the deviation",
    ),
    row(
        f"NEGATIVE_LOG_LIKELIHOOD_LOSS({_LOSS})",
        _loss,
        # negation, weight, and sums of losses and weights
        lambda outputs, first, target, weight=None, **attributes: 4 * target.size,
        "ONNX NegativeLogLikelihoodLoss-22",
    ),
    row(
        f"SOFTMAX_CROSS_ENTROPY_LOSS({_LOSS} -> output, log_probabilities)",
        _softmax_loss,
        per_input(5),
        "ONNX SoftmaxCrossEntropyLoss-13",
    ),
)
