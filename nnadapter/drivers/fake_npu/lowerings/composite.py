"""Lowerings to several instructions: normalizations, losses, einsum, packed weights."""

from __future__ import annotations

from string import ascii_letters

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.ir import ABSENT, Array, Layout, Operation
from nnadapter.ir.deferred_arrays import unpacked_weight
from nnadapter.ir.derived import applied, derived
from nnadapter.ir.operations.equation import read_equation


def _channel_axis(emitter: Emitter, operand: int) -> int:
    type_ = emitter.model.type_at(operand)
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def lower_batch_normalization(emitter: Emitter, operation: Operation) -> None:
    """Lower BATCH_NORMALIZATION, to one multiplication and one addition if all statistics are constant."""
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
        # keeps digits if the mean is far from 0
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
    """Lower INSTANCE_NORMALIZATION over spatial axes."""
    channel, rank = _channel_axis(emitter, operation.inputs[0]), emitter.model.type_at(operation.inputs[0]).rank
    axes = tuple(axis for axis in range(1, rank) if axis != channel)
    parameters = {"axes": axes, "channel_axis": channel, "epsilon": operation.attributes["epsilon"]}
    emitter.emit_operation(operation, "instance_normalization", parameters)


def lower_local_response_normalization(emitter: Emitter, operation: Operation) -> None:
    """Lower LOCAL_RESPONSE_NORMALIZATION."""
    parameters = {name: operation.attributes[name] for name in ("size", "alpha", "beta", "bias")}
    parameters["channel_axis"] = _channel_axis(emitter, operation.inputs[0])
    emitter.emit_operation(operation, "local_response_normalization", parameters)


def lower_likelihood_loss(emitter: Emitter, operation: Operation) -> None:
    """Lower NEGATIVE_LOG_LIKELIHOOD_LOSS."""
    _emit_loss(emitter, operation, emitter.tensor(operation.inputs[0]))


def lower_cross_entropy_loss(emitter: Emitter, operation: Operation) -> None:
    """Lower SOFTMAX_CROSS_ENTROPY_LOSS: log-softmax, then likelihood."""
    scores, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[1])
    (logarithms,) = emitter.emit("log_softmax", (scores,), (result,), {"axis": 1})
    emitter.assign(operation.outputs[1], logarithms)
    _emit_loss(emitter, operation, logarithms)


def _emit_loss(emitter: Emitter, operation: Operation, logarithms: int) -> None:
    target_and_weight = [emitter.tensor(operand) for operand in operation.inputs[1:] if operand != ABSENT]
    parameters = {name: operation.attributes[name] for name in ("reduction", "ignore_index")}
    result = emitter.result_type(operation.outputs[0])
    (loss,) = emitter.emit("negative_log_likelihood", (logarithms, *target_and_weight), (result,), parameters)
    emitter.assign(operation.outputs[0], loss)


def lower_einsum(emitter: Emitter, operation: Operation) -> None:
    """Lower EINSUM, replacing each label of the equation by a single letter."""
    ranks = [emitter.model.type_at(operand).rank for operand in operation.inputs]
    equation = read_equation(str(operation.attributes["equation"]), ranks)
    letters = dict(zip(equation.labels, ascii_letters, strict=False))
    *factors, result = ("".join(letters[label] for label in term) for term in (*equation.terms, equation.result))
    emitter.emit_operation(operation, "einsum", {"equation": f"{','.join(factors)}->{result}"})


def lower_mat_mul_n_bits(emitter: Emitter, operation: Operation) -> None:
    """Lower MAT_MUL_N_BITS; constant weights are unpacked at compile time."""
    x, *packed, bias = (*operation.inputs, *[ABSENT] * (5 - len(operation.inputs)))
    types, present = emitter.model.operands, [operand for operand in packed if operand != ABSENT]
    depth = types[x].type.dimensions[-1]
    parameters = {"bits": operation.attributes["bits"], "block_size": operation.attributes["block_size"]}
    if all(map(emitter.is_constant, present)):
        arrays = [None if operand == ABSENT else emitter.constant(operand) for operand in packed]
        weight = emitter.add_constant(derived(unpacked_weight, *arrays, depth=depth, **parameters))
    else:
        result = TensorType(emitter.result_type(packed[1]).dtype, (types[packed[0]].type.dimensions[0], depth))
        inputs = list(map(emitter.tensor, present))
        (weight,) = emitter.emit("unpack_weight", inputs, (result,), {"depth": depth, **parameters})
    biases = [] if bias == ABSENT else [emitter.tensor(bias)]
    emitter.emit_operation(operation, "fully_connected", inputs=[emitter.tensor(x), weight, *biases])
