"""Quantized results: what a model says of them, checked, and put in the place of what the shape rule infers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import INTEGER, DataType, OperandType, QuantizedType
from nnadapter.ir.schema import Attributes, OperationSchema

_LEAST_SCALE, _LARGEST_SCALE = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


def integer_range(dtype: DataType) -> tuple[int, int]:
    """The smallest and the largest number of an integer data type."""
    bits = round(dtype.itemsize * 8)
    if dtype.value.startswith("uint"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def check_quantization(name: str, type_: OperandType) -> None:
    """Check the quantization of a quantized type.

    Args:
        name: of what it is the type, for the message.
        type_: a type with a quantization.

    Raises:
        InvalidModelError: the data type is no integer, the axis does not exist, there is not one scale and one zero
            point per index of it, a scale is not positive and finite, or a zero point is outside the data type.
    """
    quantization = type_.quantization
    assert quantization is not None
    axis, count = quantization.axis, len(quantization.scale)
    if type_.dtype not in INTEGER:
        raise InvalidModelError(f"{name} is {type_} and quantized, expected an integer data type")
    if axis is not None and not 0 <= axis < type_.rank:
        raise InvalidModelError(f"{name} is quantized along axis {axis}, expected one of 0 to {type_.rank - 1}")
    expected_count = 1 if axis is None else type_.dimensions[axis]
    if count != expected_count or len(quantization.zero_point) != expected_count:
        raise InvalidModelError(
            f"{name} has {count} scales and {len(quantization.zero_point)} zero points, "
            f"expected {expected_count} of each"
        )
    if not all(isinstance(scale, float) for scale in quantization.scale):
        raise InvalidModelError(f"{name} has a scale that is no number, expected numbers")
    if not all(_LEAST_SCALE <= scale <= _LARGEST_SCALE for scale in quantization.scale):
        raise InvalidModelError(f"{name} has a scale that is not positive and finite in float32, expected only such")
    if not all(isinstance(point, int) for point in quantization.zero_point):
        raise InvalidModelError(f"{name} has a zero point that is no whole number, expected whole numbers")
    smallest, largest = integer_range(type_.dtype)
    if not all(smallest <= point <= largest for point in quantization.zero_point):
        raise InvalidModelError(f"{name} has a zero point outside its data type, expected {smallest} to {largest}")


def result_types(
    schema: OperationSchema,
    types: Sequence[OperandType | None],
    attributes: Attributes,
    quantized: Sequence[QuantizedType | None] = (),
) -> tuple[OperandType, ...]:
    """The types of an operation's outputs: dimensions by the shape rule, data types too where they are not quantized.

    Args:
        schema: the operation's row.
        types: by role, None where an optional input is absent; checked.
        attributes: every attribute of the row.
        quantized: by output; what is left out is not quantized.

    Raises:
        InvalidModelError: the shape rule refuses, or a result does not fit.
    """
    return quantized_results(schema, types, attributes, schema.infer(types, attributes), quantized)


def quantized_results(
    schema: OperationSchema,
    types: Sequence[OperandType | None],
    attributes: Attributes,
    inferred: tuple[OperandType, ...],
    quantized: Sequence[QuantizedType | None],
) -> tuple[OperandType, ...]:
    """What the shape rule infers, with the data types and quantizations of what is quantized.

    1. A row with a rule for quantized results decides whether a result fits its inputs. If it does, the operation
       computes with the reals that its operands stand for.
    2. An operation that sees integers alone may give integers that are said to be quantized, if no input is.
    3. An input whose data type the operation knows only as quantized wants a quantized result.

    Args:
        schema: the operation's row.
        types: by role, None where an optional input is absent; checked.
        attributes: every attribute of the row.
        inferred: by the shape rule.
        quantized: by output; what is left out is not quantized.

    Raises:
        InvalidModelError: a result does not fit.
    """
    plain = schema.quantized is None or not (schema.always_quantized or any(map(_is_quantized, types)))
    if plain and not any(quantized):
        return inferred
    quantized_types = [*quantized[: len(inferred)], *[None] * (len(inferred) - len(quantized))]
    return tuple(_result(schema, types, attributes, *pair) for pair in zip(inferred, quantized_types, strict=True))


def _result(
    schema: OperationSchema,
    types: Sequence[OperandType | None],
    attributes: Attributes,
    inferred: OperandType,
    quantized_type: QuantizedType | None,
) -> OperandType:
    if quantized_type is None:
        _check_plain(schema, types, inferred)
        return inferred
    if quantized_type == inferred.quantized:
        return inferred
    result = OperandType(quantized_type.dtype, inferred.dimensions, inferred.layout, quantized_type.quantization)
    check_quantization(f"{schema.type}: result", result)
    if schema.quantized is not None:
        _check_by_rule(schema, types, attributes, result)
    elif quantized_type.dtype is not inferred.dtype or any(map(_is_quantized, types)):
        raise InvalidModelError(f"{schema.type}: result is {result} and quantized, expected {inferred}: it has no such")
    return result


def _is_quantized(type_: OperandType | None) -> bool:
    return type_ is not None and type_.quantization is not None


def _check_by_rule(
    schema: OperationSchema, types: Sequence[OperandType | None], attributes: Attributes, result: OperandType
) -> None:
    assert schema.quantized is not None
    try:
        schema.quantized(types, result, attributes)
    except InvalidModelError as error:
        raise InvalidModelError(f"{schema.type}: {error}") from None


def _check_plain(schema: OperationSchema, types: Sequence[OperandType | None], inferred: OperandType) -> None:
    """A result that is not quantized must not come from operands that the operation only knows as reals."""
    if schema.always_quantized:
        raise InvalidModelError(f"{schema.type}: result is not quantized, expected a data type and a quantization")
    if inferred.dtype is DataType.INT32 or schema.quantized is None:
        return
    last = len(schema.inputs) - 1
    for position, type_ in enumerate(types):
        role = schema.inputs[min(position, last)]
        if type_ is not None and type_.dtype not in role.dtypes:
            raise InvalidModelError(
                f"{schema.type}: input {role.name!r} is {type_} and quantized, expected a quantized result as well"
            )
