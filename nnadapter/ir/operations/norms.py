"""Normalizations by a norm: root mean square, sum of absolute values or squares, deviation."""

from __future__ import annotations

from itertools import pairwise

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, per_output, present, row
from nnadapter.ir.operations.shape_rules import check_axis, check_broadcasts_to
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = Role("input", FLOATING)
_AXIS = Attribute("axis", AttributeKind.INT)


def _root_mean_square(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, scale = present(types, 0), present(types, 1)
    check_axis(integer(attributes, "axis"), first.rank)
    check_broadcasts_to("scale", scale.dimensions, first.dimensions)
    return (like(first, first.dimensions, scale.dtype),)


def _power_norm(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    check_axis(integer(attributes, "axis"), first.rank)
    if integer(attributes, "p") not in (1, 2):
        raise InvalidModelError(f"p is {integer(attributes, 'p')}, expected 1 or 2")
    return (like(first, first.dimensions),)


def _deviation(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, axes = present(types, 0), integers(attributes, "axes")
    if not axes or any(left >= right for left, right in pairwise(axes)):
        raise InvalidModelError(f"axes is {list(axes)}, expected at least one, ascending, none twice")
    for axis in axes:
        check_axis(axis, first.rank)
    return (like(first, first.dimensions),)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "RMS_NORMALIZATION",
        (_INPUT, Role("scale", FLOATING)),
        _root_mean_square,
        per_output(4),
        "ONNX RMSNormalization-23, over every axis from `axis` on",
        attributes=(_AXIS, Attribute("epsilon", AttributeKind.FLOAT, 1e-5)),
        ranks=(1, 64),
    ),
    row(
        "LP_NORMALIZATION",
        (_INPUT,),
        _power_norm,
        per_output(3),
        "NNADAPTER_LP_NORMALIZATION; NNAPI L2_NORMALIZATION; ONNX LpNormalization-22; zeros where the norm is 0",
        attributes=(_AXIS, Attribute("p", AttributeKind.INT, 2)),
        ranks=(1, 64),
    ),
    row(
        "MEAN_VARIANCE_NORMALIZATION",
        (_INPUT,),
        _deviation,
        per_output(5),
        "ONNX MeanVarianceNormalization-13; epsilon is added to the deviation",
        attributes=(Attribute("axes", AttributeKind.INTS), Attribute("epsilon", AttributeKind.FLOAT, 1e-9)),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
