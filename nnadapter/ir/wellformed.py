"""The first check of a model that somebody put together by hand: that everything is of the Python type it should be.

A type checker sees the same before anything runs, but not every caller has one; without this, the checks that follow
would fail in their own ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import DataType, Layout, Lifetime, Operand, OperandType, Quantization
from nnadapter.ir.tracing import Traced


def check_well_formed(model: Model) -> None:
    """Check that operands, operations and what they hold are of the types that their fields declare.

    Raises:
        InvalidModelError: the first that is not, with the operand or operation that it concerns.
    """
    for index, operand in enumerate(model.operands):
        _check_operand(index, operand)
    for name, listed in (("input", model.inputs), ("output", model.outputs)):
        if not isinstance(listed, tuple):
            raise InvalidModelError(f"model {name}s are {listed!r}, expected a tuple of whole numbers")
        for operand_index in listed:
            if not _is_whole(operand_index):
                raise InvalidModelError(f"model {name} {operand_index!r} is no operand, expected a whole number")
    for position, operation in enumerate(model.operations):
        _check_operation(position, operation)


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, (Integral, Traced)) and not isinstance(value, bool))


def _check_operand(index: int, operand: Operand) -> None:
    if not isinstance(operand, Operand):
        raise InvalidModelError(f"operand {index} is {operand!r}, expected an Operand")
    if not isinstance(operand.name, str):
        raise InvalidModelError(f"operand {index} is called {operand.name!r}, expected a text")
    which, type_ = f"operand {index} {operand.name!r}", operand.type
    if not isinstance(type_, OperandType):
        raise InvalidModelError(f"{which} is of type {type_!r}, expected an OperandType")
    if not isinstance(type_.dtype, DataType):
        raise InvalidModelError(f"{which} has the data type {type_.dtype!r}, expected a DataType")
    if not isinstance(type_.layout, Layout):
        raise InvalidModelError(f"{which} has the layout {type_.layout!r}, expected a Layout")
    if not isinstance(operand.lifetime, Lifetime):
        raise InvalidModelError(f"{which} has the lifetime {operand.lifetime!r}, expected a Lifetime")
    if not isinstance(type_.dimensions, tuple):
        raise InvalidModelError(f"{which} has dimensions {type_.dimensions!r}, expected a tuple of whole numbers")
    if not all(map(_is_whole, type_.dimensions)):
        raise InvalidModelError(f"{which} has dimensions {type_.dimensions!r}, expected whole numbers, all known")
    if type_.quantization is not None:
        check_quantization_fields(which, type_.quantization)
    if operand.value is not None:
        _check_value(which, operand.value)


def check_quantization_fields(which: str, quantization: object) -> None:
    """Check that a quantization holds what its fields declare.

    Args:
        which: how messages call what it belongs to.
        quantization: anything.

    Raises:
        InvalidModelError: it is none, or a field holds something else.
    """
    if not isinstance(quantization, Quantization):
        raise InvalidModelError(f"{which} has quantization {quantization!r}, expected a Quantization")
    for name, values in (("scale", quantization.scale), ("zero_point", quantization.zero_point)):
        if not isinstance(values, tuple):
            raise InvalidModelError(f"{which} has the {name} {values!r}, expected a tuple, of one number per tensor")
    for scale in quantization.scale:
        if not isinstance(scale, Real):
            raise InvalidModelError(f"{which} has a scale that is no number: {scale!r}, expected numbers")
    for point in quantization.zero_point:
        if not _is_whole(point):
            raise InvalidModelError(
                f"{which} has a zero point that is no whole number: {point!r}, expected whole numbers"
            )
    if quantization.axis is not None and not _is_whole(quantization.axis):
        raise InvalidModelError(f"{which} is quantized along axis {quantization.axis!r}, expected a whole number")


def _check_value(which: str, value: object) -> None:
    if not isinstance(value, np.ndarray):
        raise InvalidModelError(f"{which} holds {type(value).__name__}, expected a numpy array")
    if not value.dtype.isnative:
        raise InvalidModelError(
            f"{which} holds numbers in another byte order, {value.dtype.str}, expected this machine's"
        )


def _check_operation(position: int, operation: Operation) -> None:
    if not isinstance(operation, Operation):
        raise InvalidModelError(f"operation {position} is {operation!r}, expected an Operation")
    if not isinstance(operation.type, str):
        raise InvalidModelError(f"operation {position} is of type {operation.type!r}, expected an operation's name")
    for verb, operands in (("reads", operation.inputs), ("makes", operation.outputs)):
        if not isinstance(operands, tuple):
            raise InvalidModelError(
                f"operation {position}, {operation.type}: {verb} {operands!r}, expected a tuple of whole numbers"
            )
        for operand in operands:
            if not _is_whole(operand):
                raise InvalidModelError(
                    f"operation {position}, {operation.type}: {verb} operand {operand!r}, expected a whole number"
                )
    if not isinstance(operation.attributes, Mapping):
        raise InvalidModelError(
            f"operation {position}, {operation.type}: attributes are {operation.attributes!r}, "
            "expected a mapping by name"
        )
