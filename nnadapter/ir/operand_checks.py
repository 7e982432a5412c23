"""Checks of operand types, quantization and attribute values, without the schema table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from operator import index as as_integer

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import INTEGER, DataType, Layout, Lifetime, Operand, OperandType, Quantization, QuantizedType
from nnadapter.ir.schema import AttributeKind, Attributes, AttributeValue, OperationSchema
from nnadapter.ir.symbolic_numbers import SymbolicNumber
from nnadapter.records import replace


def check_well_formed(model: Model) -> None:
    """Check the Python types of a handmade model's fields. Raises InvalidModelError."""
    for index, operand in enumerate(model.operands):
        _check_operand(index, operand)
    for name, listed in (("input", model.inputs), ("output", model.outputs)):
        if not isinstance(listed, tuple):
            raise InvalidModelError(f"model {name}s are {listed!r}, expected a tuple of integers")
        for operand_index in listed:
            if not _is_integer(operand_index):
                raise InvalidModelError(f"model {name} {operand_index!r} is not an operand, expected an integer")
    for position, operation in enumerate(model.operations):
        _check_operation(position, operation)


def _is_integer(value: object) -> bool:
    return type(value) is int or (isinstance(value, (Integral, SymbolicNumber)) and not isinstance(value, bool))


def _check_operand(index: int, operand: Operand) -> None:
    if not isinstance(operand, Operand):
        raise InvalidModelError(f"operand {index} is {operand!r}, expected an Operand")
    if not isinstance(operand.name, str):
        raise InvalidModelError(f"operand {index} is called {operand.name!r}, expected a text")
    which, type_ = f"operand {index} {operand.name!r}", operand.type
    if not isinstance(type_, OperandType):
        raise InvalidModelError(f"{which} is of type {type_!r}, expected an OperandType")
    for name, code, kind in (
        ("data type", type_.dtype, DataType),
        ("layout", type_.layout, Layout),
        ("lifetime", operand.lifetime, Lifetime),
    ):
        if not isinstance(code, kind):
            raise InvalidModelError(f"{which} has the {name} {code!r}, expected a {kind.__name__}")
    if not isinstance(type_.dimensions, tuple) or not all(map(_is_integer, type_.dimensions)):
        raise InvalidModelError(f"{which} has dimensions {type_.dimensions!r}, expected a tuple of integers")
    if type_.quantization is not None:
        check_quantization_fields(which, type_.quantization)
    value = operand.value
    if value is None:
        return
    if not isinstance(value, np.ndarray):
        raise InvalidModelError(f"{which} holds {type(value).__name__}, expected a numpy array")
    if not value.dtype.isnative:
        raise InvalidModelError(f"{which} has another byte order, {value.dtype.str}, expected this machine's")


def check_quantization_fields(which: str, quantization: object) -> None:
    """Check the Python types of a quantization's fields. Raises InvalidModelError that names `which`."""
    if not isinstance(quantization, Quantization):
        raise InvalidModelError(f"{which} has quantization {quantization!r}, expected a Quantization")
    for name, values in (("scale", quantization.scale), ("zero_point", quantization.zero_point)):
        if not isinstance(values, tuple):
            raise InvalidModelError(f"{which} has the {name} {values!r}, expected a tuple, even of one number")
    for scale in quantization.scale:
        if not isinstance(scale, Real):
            raise InvalidModelError(f"{which} has a scale that is not a number: {scale!r}, expected numbers")
    for point in quantization.zero_point:
        if not _is_integer(point):
            raise InvalidModelError(f"{which} has a zero point that is not an integer: {point!r}, expected integers")
    if quantization.axis is not None and not _is_integer(quantization.axis):
        raise InvalidModelError(f"{which} is quantized along axis {quantization.axis!r}, expected an integer")


def _check_operation(position: int, operation: Operation) -> None:
    if not isinstance(operation, Operation):
        raise InvalidModelError(f"operation {position} is {operation!r}, expected an Operation")
    if not isinstance(operation.type, str):
        raise InvalidModelError(f"operation {position} is of type {operation.type!r}, expected an operation's name")
    for verb, operands in (("reads", operation.inputs), ("produces", operation.outputs)):
        if not isinstance(operands, tuple):
            raise InvalidModelError(
                f"operation {position}, {operation.type}: {verb} {operands!r}, expected a tuple of integers"
            )
        for operand in operands:
            if not _is_integer(operand):
                raise InvalidModelError(
                    f"operation {position}, {operation.type}: {verb} operand {operand!r}, expected an integer"
                )
    if not isinstance(operation.attributes, Mapping):
        raise InvalidModelError(
            f"operation {position}, {operation.type}: attributes are {operation.attributes!r}, "
            "expected a mapping by name"
        )


_LEAST_SCALE, _LARGEST_SCALE = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


def integer_range(dtype: DataType) -> tuple[int, int]:
    """Return the smallest and the largest integer of a data type."""
    bits = round(dtype.itemsize * 8)
    if dtype.value.startswith("uint"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def check_quantization(name: str, type_: OperandType) -> None:
    """Check data type, axis, scales and zero points. Raises InvalidModelError that names `name`."""
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
    if not all(_LEAST_SCALE <= scale <= _LARGEST_SCALE for scale in quantization.scale):
        raise InvalidModelError(
            f"{name} has a scale that is not positive and finite, expected numbers above 0 within float32"
        )
    smallest, largest = integer_range(type_.dtype)
    if not all(smallest <= point <= largest for point in quantization.zero_point):
        raise InvalidModelError(f"{name} has a zero point outside its data type, expected {smallest} to {largest}")


def result_types(
    schema: OperationSchema,
    types: Sequence[OperandType | None],
    attributes: Attributes,
    quantized: Sequence[QuantizedType | None] = (),
) -> tuple[OperandType, ...]:
    """Infer the output types, and apply `quantized_results`. Raises InvalidModelError."""
    return quantized_results(schema, types, attributes, schema.infer(types, attributes), quantized)


def quantized_results(
    schema: OperationSchema,
    types: Sequence[OperandType | None],
    attributes: Attributes,
    inferred: tuple[OperandType, ...],
    quantized: Sequence[QuantizedType | None],
) -> tuple[OperandType, ...]:
    """Return the inferred output types, with the data types and quantizations that `quantized` declares.

    1. If the row has a `quantized` rule, this rule checks the declaration, and the operation computes with real values.
    2. Otherwise, integer results may be declared quantized if no input is quantized.
    3. Without a declaration, no input may have a data type that is allowed only with a quantized result.
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
        try:
            schema.quantized(types, result, attributes)
        except InvalidModelError as error:
            raise InvalidModelError(f"{schema.type}: {error}") from None
    elif quantized_type.dtype is not inferred.dtype or any(map(_is_quantized, types)):
        raise InvalidModelError(
            f"{schema.type}: result is {result} and quantized, expected {inferred}: the operation has no quantized "
            "results"
        )
    return result


def _is_quantized(type_: OperandType | None) -> bool:
    return type_ is not None and type_.quantization is not None


def _check_plain(schema: OperationSchema, types: Sequence[OperandType | None], inferred: OperandType) -> None:
    if schema.always_quantized:
        raise InvalidModelError(f"{schema.type}: result is not quantized, but all results of this operation are")
    if inferred.dtype is DataType.INT32 or schema.quantized is None:
        return
    last = len(schema.inputs) - 1
    for position, type_ in enumerate(types):
        role = schema.inputs[min(position, last)]
        if type_ is not None and type_.dtype not in role.dtypes:
            raise InvalidModelError(
                f"{schema.type}: input {role.name!r} is {type_} and quantized, expected a quantized result as well"
            )


DTYPES = tuple(map(str, DataType))


def checked_type(name: str, type_: OperandType) -> OperandType:
    """Check an operand type, and return it with Python fields. Raises InvalidModelError."""
    if not isinstance(type_, OperandType):
        raise InvalidModelError(f"operand {name!r} is {type_!r}, expected an OperandType")
    if not is_one_of(DTYPES, type_.dtype):
        raise InvalidModelError(f"operand {name!r} is {type_.dtype!r}, expected one of {', '.join(DTYPES)}")
    try:
        dimensions = tuple(map(_dimension, type_.dimensions))
    except TypeError:
        raise InvalidModelError(f"operand {name!r} has dimensions {type_.dimensions!r}, expected integers") from None
    if any(isinstance(size, int) and size < 0 for size in dimensions):
        raise InvalidModelError(f"operand {name!r} has dimensions {list(dimensions)}, expected none below 0")
    if not is_one_of(tuple(Layout), type_.layout):
        raise InvalidModelError(f"operand {name!r} has layout {type_.layout!r}, expected one of {', '.join(Layout)}")
    if type_.quantization is not None:
        check_quantization_fields(f"operand {name!r}", type_.quantization)
    converted_type = replace(type_, dtype=DataType(type_.dtype), dimensions=dimensions, layout=Layout(type_.layout))
    check_type(name, converted_type)
    return converted_type


def is_one_of(names: tuple[str, ...], candidate: object) -> bool:
    """Return whether `candidate`, of any type, is one of the names."""
    return isinstance(candidate, str) and candidate in names


def _dimension(size: int) -> int:
    if isinstance(size, bool):
        raise TypeError
    return size if isinstance(size, SymbolicNumber) else as_integer(size)


def check_type(name: str, type_: OperandType) -> None:
    """Check layout, rank and quantization. Raises InvalidModelError."""
    if type_.layout is Layout.NHWC and type_.rank != 4:
        raise InvalidModelError(f"operand {name!r} is {type_}, expected rank 4 for layout NHWC")
    if type_.quantization is not None:
        check_quantization(f"operand {name!r}", type_)


def normalized(kind: AttributeKind, value: object) -> AttributeValue:
    """Convert an attribute value to the Python type of its kind. Raises TypeError; bool is not int."""
    return _NORMALIZE[kind](value)


def _boolean(value: object) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError


def _integer(value: object) -> int:
    if type(value) is int or isinstance(value, SymbolicNumber):
        return value  # type: ignore[return-value]
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError


def _real(value: object) -> float:
    if type(value) is float or isinstance(value, SymbolicNumber):
        return value  # type: ignore[return-value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _string(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError


def _integers(value: object) -> tuple[int, ...]:
    return tuple(map(_integer, _items(value)))


def _reals(value: object) -> tuple[float, ...]:
    return tuple(map(_real, _items(value)))


def _items(value: object) -> Sequence[object]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    raise TypeError


_NORMALIZE: Mapping[AttributeKind, Callable[[object], AttributeValue]] = {
    AttributeKind.BOOL: _boolean,
    AttributeKind.INT: _integer,
    AttributeKind.FLOAT: _real,
    AttributeKind.STRING: _string,
    AttributeKind.INTS: _integers,
    AttributeKind.FLOATS: _reals,
}
