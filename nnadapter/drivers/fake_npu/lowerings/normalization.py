"""Lowerings of normalizations and losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.ir.derived import applied
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, Layout


def _channel_axis(emitter: Emitter, operand: int) -> int:
    """The last axis in channels-last order, else the second."""
    type_ = emitter.model.operands[operand].type
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def lower_batch_normalization(emitter: Emitter, operation: Operation) -> None:
    """BATCH_NORMALIZATION: one multiplication and one addition where all but the input is constant."""
    channels = [1] * len(emitter.result_type(operation.outputs[0]).dimensions)
    channels[_channel_axis(emitter, operation.inputs[0])] = -1
    if all(map(emitter.is_constant, operation.inputs[1:])):
        _scale_and_shift(emitter, operation, tuple(channels))
    else:
        _normalize(emitter, operation, channels)


def _scale_and_shift(emitter: Emitter, operation: Operation, channels: tuple[int, ...]) -> None:
    statistics = [emitter.constant(operand) for operand in operation.inputs[1:]]
    result = emitter.result_type(operation.outputs[0])
    coefficients = applied(_factors_and_offsets, *statistics, epsilon=operation.attributes["epsilon"], shape=channels)
    factors, offsets = map(emitter.add_constant, coefficients)
    (scaled,) = emitter.emit("multiply", (emitter.tensor(operation.inputs[0]), factors), (result,))
    emitter.assign(operation.outputs[0], emitter.emit("add", (scaled, offsets), (result,))[0])


def _normalize(emitter: Emitter, operation: Operation, channels: Sequence[int]) -> None:
    """(x - mean) * (scale / sqrt(variance + epsilon)) + bias: a mean that is far from 0 costs no digits."""
    x, *statistics = map(emitter.tensor, operation.inputs)
    scale, bias, mean, variance = (
        emitter.view(statistic, [emitter.type_of(statistic).size if axis < 0 else axis for axis in channels])
        for statistic in statistics
    )
    each_channel, result = emitter.type_of(variance), emitter.result_type(operation.outputs[0])
    epsilon = emitter.add_constant(np.array(operation.attributes["epsilon"], each_channel.dtype))
    (wide,) = emitter.emit("add", (variance, epsilon), (each_channel,))
    (deviation,) = emitter.emit("unary", (wide,), (each_channel,), {"function": "sqrt", "arguments": ()})
    (factor,) = emitter.emit("divide", (scale, deviation), (each_channel,))
    (centered,) = emitter.emit("subtract", (x, mean), (result,))
    (scaled,) = emitter.emit("multiply", (centered, factor), (result,))
    emitter.assign(operation.outputs[0], emitter.emit("add", (scaled, bias), (result,))[0])


def _factors_and_offsets(
    scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    scale, bias, mean, variance = (array.astype(np.float64) for array in (scale, bias, mean, variance))
    factor = scale / np.sqrt(variance + epsilon)
    return factor.astype(np.float32).reshape(shape), (bias - mean * factor).astype(np.float32).reshape(shape)


def lower_instance_normalization(emitter: Emitter, operation: Operation) -> None:
    """INSTANCE_NORMALIZATION over all axes but batch and channel."""
    channel = _channel_axis(emitter, operation.inputs[0])
    parameters = {
        "axes": tuple(
            axis for axis in range(1, emitter.model.operands[operation.inputs[0]].type.rank) if axis != channel
        ),
        "channel_axis": channel,
        "epsilon": operation.attributes["epsilon"],
    }
    emitter.emit_operation(operation, "instance_normalization", parameters)


def lower_local_response_normalization(emitter: Emitter, operation: Operation) -> None:
    """LOCAL_RESPONSE_NORMALIZATION across channels."""
    parameters = {name: operation.attributes[name] for name in ("size", "alpha", "beta", "bias")}
    parameters["channel_axis"] = _channel_axis(emitter, operation.inputs[0])
    emitter.emit_operation(operation, "local_response_normalization", parameters)


def lower_likelihood_loss(emitter: Emitter, operation: Operation) -> None:
    """NEGATIVE_LOG_LIKELIHOOD_LOSS."""
    _emit(emitter, operation, emitter.tensor(operation.inputs[0]))


def lower_cross_entropy_loss(emitter: Emitter, operation: Operation) -> None:
    """SOFTMAX_CROSS_ENTROPY_LOSS: the logarithm of softmax, then the likelihood."""
    scores, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[1])
    (logarithms,) = emitter.emit("log_softmax", (scores,), (result,), {"axis": 1})
    emitter.assign(operation.outputs[1], logarithms)
    _emit(emitter, operation, logarithms)


def _emit(emitter: Emitter, operation: Operation, logarithms: int) -> None:
    rest = [emitter.tensor(operand) for operand in operation.inputs[1:] if operand != ABSENT]
    parameters = {name: operation.attributes[name] for name in ("reduction", "ignore_index")}
    results = (emitter.result_type(operation.outputs[0]),)
    (loss,) = emitter.emit("negative_log_likelihood", (logarithms, *rest), results, parameters)
    emitter.assign(operation.outputs[0], loss)
