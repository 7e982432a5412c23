"""Converters of normalizations and Softmax."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid, normalize_axes, normalize_axis
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import DataType

_EPSILON = 1e-5


@converter("BatchNormalization", 7, 9, 14, 15)
def convert_batch_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """Convert BatchNormalization to BATCH_NORMALIZATION.

    Refused: `training_mode`, further outputs, and `spatial` 0 (version 7).
    """
    _refuse_unless(node, "spatial", 1)
    _refuse_unless(node, "training_mode", 0)
    _refuse_outputs(node, "running and saved statistics exist only in training")
    context.add("BATCH_NORMALIZATION", context.operands(node, 5), {"epsilon": _epsilon(node)}, node.outputs[:1])


def _refuse_unless(node: OnnxNode, name: str, expected: int) -> None:
    value = node.integer(name, expected)
    if value != expected:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, f"attribute {name!r} of {node.op_type} is {value}; expected {expected}"
        )


def _refuse_outputs(node: OnnxNode, reason: str) -> None:
    if any(node.outputs[1:]):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"outputs {[name for name in node.outputs[1:] if name]} of {node.op_type} are used; "
            f"expected only the first: {reason}",
        )


def _epsilon(node: OnnxNode) -> float:
    return node.number("epsilon", _EPSILON)


@converter("LayerNormalization", 17)
def convert_layer_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """Convert LayerNormalization to LAYER_NORMALIZATION, or to several operations if further outputs are used.

    `stash_type` is ignored. Refused: further outputs, unless the input and statistics are float32.
    """
    rank = context.rank(node)
    axis = normalize_axis(node, node.integer("axis", -1), rank)
    if any(node.outputs[1:]):
        _normalize_in_steps(context, node, tuple(range(axis, rank)))
        return
    context.add(
        "LAYER_NORMALIZATION", context.operands(node, 2, 1), {"epsilon": _epsilon(node), "axis": axis}, node.outputs[:1]
    )


def _normalize_in_steps(context: ConversionContext, node: OnnxNode, axes: tuple[int, ...]) -> None:
    dtype = context.type_of(node.input(0)).dtype
    if dtype is not DataType.FLOAT32 or node.integer("stash_type", 1) != 1:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"LayerNormalization with Mean or InvStdDev has {dtype.value} input; expected float32 and stash_type 1",
        )
    x, scale = context.operand(node.input(0)), context.operand(node.input(1))
    result, mean, inverse = (*node.outputs, "", "")[:3]
    epsilon = context.add_constant(np.array(_epsilon(node), np.float32))
    center = context.apply("REDUCE_MEAN", x, outputs=[mean] if mean else (), axes=axes, keepdims=True)
    centered = context.apply("SUB", x, center)
    variance = context.apply("REDUCE_MEAN", context.apply("MUL", centered, centered), axes=axes, keepdims=True)
    deviation = context.apply("SQRT", context.apply("ADD", variance, epsilon))
    factor = context.apply("RECIPROCAL", deviation, outputs=[inverse] if inverse else ())
    normalized = context.apply("MUL", centered, factor)
    bias = node.input(2)
    scaled = context.apply("MUL", normalized, scale, outputs=() if bias else [result])
    if bias:
        context.apply("ADD", scaled, context.operand(bias), outputs=[result])


@converter("GroupNormalization", 18)
def convert_group_normalization_per_group(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GroupNormalization (18) to INSTANCE_NORMALIZATION."""
    scale, bias = context.operand(node.input(1)), context.operand(node.input(2))
    grouped = _normalize_groups(context, node, scale, bias)
    context.apply("RESHAPE", grouped, outputs=node.outputs, shape=context.dimensions(node.input(0)))


@converter("GroupNormalization", 21)
def convert_group_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GroupNormalization (21) to INSTANCE_NORMALIZATION, MUL and ADD."""
    dimensions = context.dimensions(node.input(0))
    groups, data_type = _groups(context, node), np.dtype(context.type_of(node.input(0)).dtype)
    ones, zeros = (context.add_constant(make(groups, data_type)) for make in (np.ones, np.zeros))
    grouped = _normalize_groups(context, node, ones, zeros)
    result = context.apply("RESHAPE", grouped, shape=dimensions)
    result = context.apply("MUL", result, _per_channel(context, node.input(1), len(dimensions)))
    context.apply("ADD", result, _per_channel(context, node.input(2), len(dimensions)), outputs=node.outputs)


def _groups(context: ConversionContext, node: OnnxNode) -> int:
    dimensions, groups = context.dimensions(node.input(0)), node.integer("num_groups")
    if len(dimensions) < 2 or groups < 1 or dimensions[1] % groups:
        raise invalid(
            f"attribute 'num_groups' of GroupNormalization on shape {list(dimensions)} is {groups}; "
            "expected a divisor of the number of channels"
        )
    return groups


def _normalize_groups(context: ConversionContext, node: OnnxNode, scale: int, bias: int) -> int:
    groups, input_type = _groups(context, node), context.type_of(node.input(0))
    batch = input_type.dimensions[0]
    shape = (batch, groups, input_type.size // (batch * groups) if batch else 0)
    grouped = context.apply("RESHAPE", context.operand(node.input(0)), shape=shape)
    return context.apply("INSTANCE_NORMALIZATION", grouped, scale, bias, epsilon=_epsilon(node))


def _per_channel(context: ConversionContext, name: str, rank: int) -> int:
    shape = (*context.dimensions(name), *(1,) * (rank - 2))
    if context.is_constant(name):
        return context.add_constant(context.constant(name).reshape(shape))
    return context.apply("RESHAPE", context.operand(name), shape=shape)


@converter("MeanVarianceNormalization", 9, 13)
def convert_mean_variance_normalization(context: ConversionContext, node: OnnxNode) -> None:
    """Convert MeanVarianceNormalization to MEAN_VARIANCE_NORMALIZATION."""
    axes_attribute = node.integers("axes")
    axes = normalize_axes(node, (0, 2, 3) if axes_attribute is None else axes_attribute, context.rank(node))
    context.add_for(node, "MEAN_VARIANCE_NORMALIZATION", {"axes": tuple(sorted(axes))})


def _over_matrix(type_: str, context: ConversionContext, node: OnnxNode) -> None:
    """Convert Softmax, LogSoftmax or Hardmax (1, 11), which apply to `axis` (default 1) and all later axes together.

    If several of these axes are larger than 1, the input is reshaped to a matrix.
    """
    dimensions = context.dimensions(node.input(0))
    rank, axis = len(dimensions), node.integer("axis", 1)
    axis = rank if axis == rank else normalize_axis(node, axis, rank)
    wide = [index for index in range(axis, rank) if dimensions[index] != 1]
    if len(wide) <= 1 and rank:
        context.add_for(node, type_, {"axis": wide[0] if wide else rank - 1})
        return
    shape = (prod(dimensions[:axis]), prod(dimensions[axis:]))
    matrix = context.apply("RESHAPE", context.operand(node.input(0)), shape=shape)
    result = context.apply(type_, matrix, axis=1)
    context.apply("RESHAPE", result, outputs=node.outputs, shape=dimensions)


for _op_type, _type in (("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX"), ("Hardmax", "HARDMAX")):
    converter(_op_type, 1, 11)(partial(_over_matrix, _type))


_ONNX_EPSILON = 1e-9
"""Epsilon of MeanVarianceNormalization-13, added to deviations."""


@exporter("RMS_NORMALIZATION")
def export_rms_normalization(write: NodeWriter) -> str:
    """Export RMS_NORMALIZATION as RMSNormalization.

    If input and scale differ in type, ONNX's function body is wrong, so float32 is used.
    """
    of, dtype, inputs = write.operation, write.result.type.dtype, write.inputs
    if dtype is not write.type.dtype:
        inputs = tuple(write.cast(input_name, DataType.FLOAT32) for input_name in inputs)
    return write.cast(write.node("RMSNormalization", *inputs, axis=of.axis, epsilon=of.epsilon), dtype)


@exporter("MEAN_VARIANCE_NORMALIZATION")
def export_mean_variance_normalization(write: NodeWriter) -> str:
    """Export MEAN_VARIANCE_NORMALIZATION as MeanVarianceNormalization if it has float32 and ONNX's epsilon.

    Otherwise, export it as arithmetic.
    """
    of, x = write.operation, write.inputs[0]
    if of.epsilon == _ONNX_EPSILON and write.type.dtype is DataType.FLOAT32:
        return write.node("MeanVarianceNormalization", x, axes=of.axes)
    axes = write.integers(*of.axes)
    centered = write.node("Sub", x, write.node("ReduceMean", x, axes))
    variance = write.node("ReduceMean", write.node("Mul", centered, centered), axes)
    deviation = write.node("Add", write.node("Sqrt", variance), write.number(of.epsilon, write.type.dtype))
    return write.node("Div", centered, deviation)
