"""Operations that make a tensor from next to nothing: a value, a first number and a step, the shape of another."""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, no_flops, per_output, present, row, string
from nnadapter.ir.operations.shape_rules import check_at_least
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_DATA_TYPES = tuple(data_type.value for data_type in DataType)


def _fill(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    shape = integers(attributes, "shape")
    check_at_least("shape", shape, 0)
    return (OperandType(present(types, 0).dtype, shape),)


def _range(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    start, delta, count = present(types, 0), present(types, 1), integer(attributes, "count")
    if delta.rank != 0:
        raise InvalidModelError(f"delta has dimensions {list(delta.dimensions)}, expected a scalar")
    if count < 0:
        raise InvalidModelError(f"count is {count}, expected 0 or more")
    return (OperandType(start.dtype, (count,)),)


def _eye_like(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    return (OperandType(DataType(string(attributes, "to")), present(types, 0).dimensions),)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "FILL",
        (Role("value"),),
        _fill,
        no_flops,
        "NNAPI FILL; NNADAPTER_FILL; ONNX ConstantOfShape-25",
        attributes=(Attribute("shape", AttributeKind.INTS),),
        ranks=(0, 0),
    ),
    row(
        "RANGE",
        (Role("start", NUMERIC), Role("delta", NUMERIC, same_dtype_as="start")),
        _range,
        per_output(2),
        "NNADAPTER_RANGE; ONNX Range-27, with the number of elements in the place of the limit: start + i * delta",
        attributes=(Attribute("count", AttributeKind.INT),),
        ranks=(0, 0),
    ),
    row(
        "EYE_LIKE",
        (Role("input"),),
        _eye_like,
        no_flops,
        "ONNX EyeLike-22: of the input, the dimensions alone matter",
        attributes=(Attribute("to", AttributeKind.STRING, None, _DATA_TYPES), Attribute("k", AttributeKind.INT, 0)),
        ranks=(2, 2),
    ),
)
"""The rows of this family."""
