"""Operations that look along one axis and keep it."""

from __future__ import annotations

from nnadapter.ir.operand import FLOATING, NUMERIC, OperandType
from nnadapter.ir.operations.access import integer
from nnadapter.ir.operations.checks import check_axis
from nnadapter.ir.operations.layouts import like
from nnadapter.ir.operations.row import Types, per_input, present, row
from nnadapter.ir.schema import Attribute, Attributes, Kind, OperationSchema, Role

_AXIS = Attribute("axis", Kind.INT)


def _along(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    check_axis(integer(attributes, "axis"), first.rank)
    return (like(first, first.dimensions),)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "CUM_PROD",
        (Role("input", NUMERIC),),
        _along,
        per_input(1),
        "ONNX CumProd-26",
        attributes=(_AXIS, Attribute("exclusive", Kind.BOOL, False), Attribute("reverse", Kind.BOOL, False)),
        ranks=(1, 64),
    ),
    row(
        "HARDMAX",
        (Role("input", FLOATING),),
        _along,
        per_input(1),
        "ONNX Hardmax-13: 1 at the first of the largest elements, 0 elsewhere",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
