"""Shape rules that operations of several families share."""

from __future__ import annotations

from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.access import integer
from nnadapter.ir.operations.broadcasting import broadcast
from nnadapter.ir.operations.checks import check_axis
from nnadapter.ir.operations.layouts import layout_of, like
from nnadapter.ir.operations.row import Types, present
from nnadapter.ir.schema import Attributes


def as_first(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """The data type, the dimensions and the layout of the first input."""
    first = present(types, 0)
    return (like(first, first.dimensions),)


def along_axis(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """As the first input, which must have the axis that the attribute `axis` names; else InvalidModelError."""
    check_axis(integer(attributes, "axis"), present(types, 0).rank)
    return as_first(types, attributes)


def spread_pair(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    """The first input's data type, the dimensions of both broadcast; InvalidModelError where they do not fit."""
    first, second = present(types, 0), present(types, 1)
    dimensions = broadcast((first.dimensions, second.dimensions))
    return (OperandType(first.dtype, dimensions, layout_of((first, second), len(dimensions))),)
