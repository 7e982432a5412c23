"""Lowerings of normalizations and losses."""

from __future__ import annotations

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.ir.derived import applied
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, Layout


def _channel_axis(emitter: Emitter, operand: int) -> int:
    """Return the last axis in channels-last order, otherwise the second."""
    type_ = emitter.model.operands[operand].type
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def lower_batch_normalization(emitter: Emitter, operation: Operation) -> None:
    """Lower BATCH_NORMALIZATION: one multiplication and one addition if all operands except the input are constant."""
    x, *operands = operation.inputs
    result = emitter.result_type(operation.outputs[0])
    axis, channels = _channel_axis(emitter, x), [1] * len(result.dimensions)
    channels[axis] = result.dimensions[axis]
    source, epsilon = emitter.tensor(x), operation.attributes["epsilon"]
    if all(map(emitter.is_constant, operands)):
        channels[axis] = -1  # constants must not depend on sizes
        statistics = map(emitter.constant, operands)
        coefficients = applied(_factors_and_offsets, *statistics, epsilon=epsilon, shape=tuple(channels))
        factor, offset = map(emitter.add_constant, coefficients)
    else:
        # (x - mean) * (scale / sqrt(variance + epsilon)) + bias: a mean that is far from 0 costs no digits.
        scale, offset, mean, variance = (emitter.view(emitter.tensor(operand), channels) for operand in operands)
        type_ = emitter.type_of(variance)
        constant = emitter.add_constant(np.array(epsilon, type_.dtype))
        (wide,) = emitter.emit("add", (variance, constant), (type_,))
        (deviation,) = emitter.emit("unary", (wide,), (type_,), {"function": "sqrt", "arguments": ()})
        (factor,) = emitter.emit("divide", (scale, deviation), (type_,))
        (source,) = emitter.emit("subtract", (source, mean), (result,))
    (scaled,) = emitter.emit("multiply", (source, factor), (result,))
    emitter.assign(operation.outputs[0], emitter.emit("add", (scaled, offset), (result,))[0])


def _factors_and_offsets(
    scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    scale, bias, mean, variance = (array.astype(np.float64) for array in (scale, bias, mean, variance))
    factor = scale / np.sqrt(variance + epsilon)
    return factor.astype(np.float32).reshape(shape), (bias - mean * factor).astype(np.float32).reshape(shape)


def lower_instance_normalization(emitter: Emitter, operation: Operation) -> None:
    """Lower INSTANCE_NORMALIZATION, over all axes except batch and channel."""
    channel, rank = _channel_axis(emitter, operation.inputs[0]), emitter.model.operands[operation.inputs[0]].type.rank
    axes = tuple(axis for axis in range(1, rank) if axis != channel)
    parameters = {"axes": axes, "channel_axis": channel, "epsilon": operation.attributes["epsilon"]}
    emitter.emit_operation(operation, "instance_normalization", parameters)


def lower_local_response_normalization(emitter: Emitter, operation: Operation) -> None:
    """Lower LOCAL_RESPONSE_NORMALIZATION, across channels."""
    parameters = {name: operation.attributes[name] for name in ("size", "alpha", "beta", "bias")}
    parameters["channel_axis"] = _channel_axis(emitter, operation.inputs[0])
    emitter.emit_operation(operation, "local_response_normalization", parameters)


def lower_likelihood_loss(emitter: Emitter, operation: Operation) -> None:
    """Lower NEGATIVE_LOG_LIKELIHOOD_LOSS."""
    _emit_loss(emitter, operation, emitter.tensor(operation.inputs[0]))


def lower_cross_entropy_loss(emitter: Emitter, operation: Operation) -> None:
    """Lower SOFTMAX_CROSS_ENTROPY_LOSS: the logarithm of softmax, then the likelihood."""
    scores, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[1])
    (logarithms,) = emitter.emit("log_softmax", (scores,), (result,), {"axis": 1})
    emitter.assign(operation.outputs[1], logarithms)
    _emit_loss(emitter, operation, logarithms)


def _emit_loss(emitter: Emitter, operation: Operation, logarithms: int) -> None:
    rest = [emitter.tensor(operand) for operand in operation.inputs[1:] if operand != ABSENT]
    parameters = {name: operation.attributes[name] for name in ("reduction", "ignore_index")}
    result = emitter.result_type(operation.outputs[0])
    (loss,) = emitter.emit("negative_log_likelihood", (logarithms, *rest), (result,), parameters)
    emitter.assign(operation.outputs[0], loss)
