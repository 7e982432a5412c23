"""Losses of classifications: scores [N, C, d1, …] against classes [N, d1, …]."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, DataType, OperandType
from nnadapter.ir.operations.row import Types, per_input, present, row
from nnadapter.ir.operations.shape_rules import check_vector
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_ROLES = (
    Role("input", FLOATING),
    Role("target", frozenset({DataType.INT32, DataType.INT64})),
    Role("weight", FLOATING, optional=True, same_dtype_as="input"),
)
_ATTRIBUTES = (
    Attribute("reduction", AttributeKind.STRING, "mean", choices=("none", "sum", "mean")),
    Attribute("ignore_index", AttributeKind.INT, -1),
)


def _loss(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, target = present(types, 0), present(types, 1)
    batch, classes, *rest = first.dimensions
    if target.dimensions != (batch, *rest):
        raise InvalidModelError(f"target has dimensions {list(target.dimensions)}, expected {[batch, *rest]}")
    weight = types[2] if len(types) > 2 else None
    if weight is not None:
        check_vector("weight", weight, classes)
    return (OperandType(first.dtype, target.dimensions if attributes["reduction"] == "none" else ()),)


def _softmax_loss(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    return (*_loss(types, attributes), OperandType(first.dtype, first.dimensions))


def _loss_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    # Negation, weight and sum of the loss and of the weights.
    return 4 * present(types, 1).size


ROWS: tuple[OperationSchema, ...] = (
    row(
        "NEGATIVE_LOG_LIKELIHOOD_LOSS",
        _ROLES,
        _loss,
        _loss_flops,
        "ONNX NegativeLogLikelihoodLoss-22",
        attributes=_ATTRIBUTES,
        ranks=(2, 64),
    ),
    row(
        "SOFTMAX_CROSS_ENTROPY_LOSS",
        _ROLES,
        _softmax_loss,
        per_input(5),
        "ONNX SoftmaxCrossEntropyLoss-13",
        attributes=_ATTRIBUTES,
        outputs=("output", "log_probabilities"),
        ranks=(2, 64),
    ),
)
"""The rows of this family.

Targets that are `ignore_index` count neither in the loss nor in its mean; -1, which is no class, stands for none.
"""
