"""Operands in another data type or in other dimensions, made now where they are constants."""

from __future__ import annotations

import numpy as np

from nnadapter.converters.context import ConversionContext
from nnadapter.ir.operand import DataType


def cast(context: ConversionContext, operand: int, dtype: DataType) -> int:
    """The operand in another data type; itself if it has that, a constant if it is one."""
    if context.type_of(operand).dtype is dtype:
        return operand
    value = context.value_of(operand)
    if value is not None:
        return context.add_constant(value.astype(np.dtype(dtype)))
    return context.add("CAST", (operand,), {"to": dtype.value})[0]


def reshaped(context: ConversionContext, operand: int, shape: tuple[int, ...]) -> int:
    """The operand in other dimensions; itself if it has those, a constant if it is one."""
    if context.type_of(operand).dimensions == shape:
        return operand
    value = context.value_of(operand)
    if value is not None:
        return context.add_constant(value.reshape(shape))
    return context.add("RESHAPE", (operand,), {"shape": shape})[0]
