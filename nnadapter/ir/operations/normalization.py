"""Normalizations and softmax: the result has the input's dimensions.

FLOPs per element: batch normalization 2, since its scale and shift are constants of a trained network; the others count
the steps of their formulas, with mean, centering, square, sum, scale and shift as one each.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.operand import FLOATING, OperandType
from nnadapter.ir.operations.row import Types, integer, per_output, present, row
from nnadapter.ir.operations.shape_rules import (
    along_axis,
    check_at_least,
    check_axis,
    check_broadcasts_to,
    check_vector,
)
from nnadapter.ir.operations.windows import channel_axis, like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_EPSILON = Attribute("epsilon", AttributeKind.FLOAT, 1e-5)
_AXIS = Attribute("axis", AttributeKind.INT)
_INPUT = Role("input", FLOATING)
_SCALE = Role("scale", FLOATING, same_dtype_as="input")


def _per_channel(names: tuple[str, ...], types: Types) -> tuple[OperandType, ...]:
    first = present(types, 0)
    channels = first.dimensions[channel_axis(first)]
    for position, name in enumerate(names, 1):
        check_vector(name, present(types, position), channels)
    return (like(first, first.dimensions),)


def _batch(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    return _per_channel(("scale", "bias", "mean", "variance"), types)


def _instance(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    return _per_channel(("scale", "bias"), types)


def _layer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    normalized = first.dimensions[check_axis(integer(attributes, "axis"), first.rank) :]
    for name, type_ in zip(("scale", "bias"), types[1:], strict=False):
        if type_ is not None:
            check_broadcasts_to(name, type_.dimensions, normalized)
    return (like(first, first.dimensions),)


def _response(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    check_at_least("size", (integer(attributes, "size"),), 1)
    first = present(types, 0)
    return (like(first, first.dimensions),)


def _response_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # square, sum over the window, multiply-add, power, divide
    return outputs[0].size * (integer(attributes, "size") + 5)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "BATCH_NORMALIZATION",
        # ONNX lets the statistics have another floating-point type than the input.
        (_INPUT, *(Role(name, FLOATING) for name in ("scale", "bias", "mean", "variance"))),
        _batch,
        per_output(2),
        "NNADAPTER_BATCH_NORMALIZATION; ONNX BatchNormalization-15 at inference",
        attributes=(_EPSILON,),
        ranks=(2, 64),
    ),
    row(
        "LAYER_NORMALIZATION",
        (_INPUT, _SCALE, Role("bias", FLOATING, optional=True, same_dtype_as="input")),
        _layer,
        per_output(7),
        "NNADAPTER_LAYER_NORMALIZATION; ONNX LayerNormalization-17, over every axis from `axis` on",
        attributes=(_AXIS, _EPSILON),
        ranks=(1, 64),
    ),
    row(
        "INSTANCE_NORMALIZATION",
        (_INPUT, _SCALE, Role("bias", FLOATING, same_dtype_as="input")),
        _instance,
        per_output(7),
        "NNAPI INSTANCE_NORMALIZATION; ONNX InstanceNormalization-6",
        attributes=(_EPSILON,),
        ranks=(3, 64),
    ),
    row(
        "LOCAL_RESPONSE_NORMALIZATION",
        (_INPUT,),
        _response,
        _response_flops,
        "NNAPI LOCAL_RESPONSE_NORMALIZATION; ONNX LRN-13, across channels",
        attributes=(
            Attribute("size", AttributeKind.INT),
            Attribute("alpha", AttributeKind.FLOAT, 1e-4),
            Attribute("beta", AttributeKind.FLOAT, 0.75),
            Attribute("bias", AttributeKind.FLOAT, 1.0),
        ),
        ranks=(2, 64),
    ),
    row(
        "SOFTMAX",
        (_INPUT,),
        along_axis,
        per_output(5),
        "NNAPI SOFTMAX; ONNX Softmax-13, along one axis",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
    row(
        "LOG_SOFTMAX",
        (_INPUT,),
        along_axis,
        per_output(5),
        "NNAPI LOG_SOFTMAX; ONNX LogSoftmax-13, along one axis",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
