"""Operations that look along one axis and keep it."""

from __future__ import annotations

from nnadapter.ir.operand import FLOATING, NUMERIC
from nnadapter.ir.operations.row import per_input, row
from nnadapter.ir.operations.shape_rules import along_axis
from nnadapter.ir.schema import Attribute, AttributeKind, OperationSchema, Role

_AXIS = Attribute("axis", AttributeKind.INT)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "CUM_PROD",
        (Role("input", NUMERIC),),
        along_axis,
        per_input(1),
        "ONNX CumProd-26",
        attributes=(
            _AXIS,
            Attribute("exclusive", AttributeKind.BOOL, False),
            Attribute("reverse", AttributeKind.BOOL, False),
        ),
        ranks=(1, 64),
    ),
    row(
        "HARDMAX",
        (Role("input", FLOATING),),
        along_axis,
        per_input(1),
        "ONNX Hardmax-13: 1 at the first of the largest elements, 0 elsewhere",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
