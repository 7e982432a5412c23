"""Operands as messages, and back, without their contents."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, Lifetime, Operand, OperandType, Quantization
from nnadapter.ir.protobuf.messages import ADVICE, Message

_Word = TypeVar("_Word", bound=StrEnum)


def write_operand(message: Message, operand: Operand) -> None:
    """Fill an Operand message with all but the contents."""
    type_ = operand.type
    message.name = operand.name
    message.data_type = type_.dtype.value
    message.dimensions.extend(type_.dimensions)
    message.layout = type_.layout.value
    message.lifetime = operand.lifetime.value
    if type_.quantization is not None:
        message.quantization.scale.extend(type_.quantization.scale)
        message.quantization.zero_point.extend(type_.quantization.zero_point)
        if type_.quantization.axis is not None:
            message.quantization.axis = type_.quantization.axis


def read_operand(message: Message) -> Operand:
    """Return the operand of a message, without contents.

    Raises:
        InvalidModelError: a word is not one of those that there are, or a dimension is no size.
    """
    dimensions = tuple(message.dimensions)
    if len(dimensions) > limits.RANK or any(size < 0 for size in dimensions):
        raise InvalidModelError(
            f"operand {message.name!r} has rank {len(dimensions)} and dimensions {list(dimensions[: limits.RANK])}, "
            f"expected at most {limits.RANK}, none below 0; {ADVICE}"
        )
    type_ = OperandType(
        _word(DataType, message.data_type, message.name),
        dimensions,
        _word(Layout, message.layout, message.name),
        _quantization(message.quantization) if message.HasField("quantization") else None,
    )
    return Operand(message.name, type_, _word(Lifetime, message.lifetime, message.name))


def _quantization(message: Message) -> Quantization:
    axis = message.axis if message.HasField("axis") else None
    return Quantization(scale=tuple(message.scale), zero_point=tuple(message.zero_point), axis=axis)


def _word(kind: type[_Word], value: str, operand: str) -> _Word:
    if value in _words(kind):
        return kind(value)
    raise InvalidModelError(
        f"operand {operand!r} has the {kind.__name__} {value!r}, expected one of {', '.join(_words(kind))}; {ADVICE}"
    )


def _words(kind: Iterable[StrEnum]) -> list[str]:
    return [member.value for member in kind]
