"""The text form of a model, and its digest.

    input %0 "x": float32[1, 3, 8, 8]
    constant %1 "w": float32[4, 3, 3, 3] sha256 0f3a…
    %2 "y": float32[1, 4, 6, 6] = CONV_2D(%0, %1) {strides=[1, 1], …} from "conv"
    output %2

Operands are numbered by their position. Models with the same text are the same but for the contents of constants, of
which the text holds the beginning of a digest. `to_named_text` leaves the numbers out, so that two models of which one
was made from the other differ in few lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Operand, OperandType, digest_of
from nnadapter.ir.schema import AttributeValue

_PREFIX = 16
"""Hexadecimal digits of a constant's digest that the text shows."""


def to_text(model: Model) -> str:
    """Return the model as text: a line for each input, constant, operation and output, ended by a newline."""
    return _text(model, _digests(model))


def to_named_text(model: Model) -> str:
    """Return the model as text in which operands are called by their names alone; for people who compare two."""
    return _text(model, _digests(model), lambda index: "")


def digest(model: Model) -> str:
    """Return the SHA-256, 64 hexadecimal digits, of the text form and of the contents of every constant."""
    digests = _digests(model)
    hasher = sha256(_text(model, digests).encode())
    for content_digest in digests.values():
        hasher.update(content_digest.encode())
    return hasher.hexdigest()


def _digests(model: Model) -> Mapping[int, str]:
    values = ((index, operand.value) for index, operand in enumerate(model.operands))
    return {index: digest_of(value) for index, value in values if value is not None}


_Number = Callable[[int], str]
"""What stands for an operand's position: text, or nothing where its name alone shall stand there."""


def _percent(index: int) -> str:
    return f"%{index}"


def _text(model: Model, digests: Mapping[int, str], number: _Number = _percent) -> str:
    lines = [f"input {_operand(model, index, number)}" for index in model.inputs]
    lines += [
        f"constant {_operand(model, index, number)} sha256 {content_digest[:_PREFIX]}"
        for index, content_digest in digests.items()
    ]
    lines += [_operation(model, operation, number) for operation in model.operations]
    lines += [f"output {_read(model, index, number)}" for index in model.outputs]
    return "\n".join(lines) + "\n"


def _operand(model: Model, index: int, number: _Number) -> str:
    operand: Operand = model.operands[index]
    return f"{number(index)} {_quoted(operand.name)}: {_type(operand.type)}".lstrip()


def _read(model: Model, index: int, number: _Number) -> str:
    return "-" if index == ABSENT else number(index) or _quoted(model.operands[index].name)


def _type(type_: OperandType) -> str:
    quantization = type_.quantization
    if quantization is None:
        return str(type_)
    along = "" if quantization.axis is None else f" along {quantization.axis}"
    return f"{type_} scale {_value(quantization.scale)} zero_point {_value(quantization.zero_point)}{along}"


def _operation(model: Model, operation: Operation, number: _Number) -> str:
    results = ", ".join(_operand(model, index, number) for index in operation.outputs)
    read = ", ".join(_read(model, index, number) for index in operation.inputs)
    attributes = ", ".join(f"{name}={_value(value)}" for name, value in sorted(operation.attributes.items()))
    origins = ", ".join(map(_quoted, operation.origins))
    return (
        f"{results} = {operation.type}({read})"
        f"{f' {{{attributes}}}' if attributes else ''}{f' from {origins}' if origins else ''}"
    )


def _value(value: AttributeValue | Sequence[int | float]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(repr, value))}]"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
