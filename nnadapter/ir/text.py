"""Text form of a model, its digest, and its canonical form without names and with constants apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Operand, OperandType, digest_of
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


_PLAIN = (int, float, str, bytes, bool, type(None), Enum)
"""Types whose text says all that they hold."""
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The contents of a constant, which are read when somebody asks."""

    read: Callable[[], Any]
    """Gives them as a flat array of bytes."""
    nbytes: int
    identity: Hashable = None
    """What tells them from all others as long as this process lives; None if nothing does but `owner`."""
    owner: Array | None = None
    """The array that holds them and does not change; None where `identity` tells."""


@dataclass(frozen=True, slots=True, eq=False)
class Canonical:
    """A model without names."""

    structure: str
    """SHA-256 of operations and their attributes, data types and what is connected with what: hexadecimal digits."""
    shapes: str
    """SHA-256 of all dimensions."""
    constants: tuple[Contents, ...]
    """In an order that the structure fixes."""
    operations: str
    """In words."""
    inputs: str
    """The shapes of inputs, in words."""


class NotCanonicalError(ValueError):
    """A model holds something of which is not known what it decides. Nobody outside of caching sees it."""


def canonical(model: Model) -> Canonical:
    """Return the canonical form of a model in adapter IR: names, origins and hints to compilers are left out.

    Raises:
        NotCanonicalError: it leaves sizes open, or holds something of which is not known what it decides.
    """
    if model.has_dynamic_shapes:
        raise NotCanonicalError("its sizes are open, in a form that no file has")
    operands = [(_canonical_type(operand), operand.value is not None) for operand in model.operands]
    operations = [
        (operation.type, tuple(operation.inputs), tuple(operation.outputs), tuple(sorted(operation.attributes.items())))
        for operation in model.operations
    ]
    constants = [operand.value for operand in model.operands if operand.value is not None]
    packages = _packages(operation.type for operation in model.operations)
    return Canonical(
        structure=digest_of_plain((operands, operations, tuple(model.inputs), tuple(model.outputs), *packages)),
        shapes=digest_of_plain([tuple(map(int, operand.type.dimensions)) for operand in model.operands]),
        constants=tuple(map(_contents, constants)),
        operations="; of ".join((counted(operation.type for operation in model.operations), *packages)),
        inputs=", ".join(str(list(model.operands[index].type.dimensions)) for index in model.inputs),
    )


def digest_of_plain(value: Any) -> str:
    """Return the SHA-256 of plain data, tuples and lists of it, by its text.

    Raises:
        NotCanonicalError: something in it is not plain.
    """
    _check(value)
    return sha256(repr(value).encode()).hexdigest()


def _packages(op_types: Iterable[str]) -> list[str]:
    """The distributions, with their versions, that bring operations of a model."""
    from nnadapter.ir.operations import BROUGHT, SCHEMAS  # who has a model has it; who only reads files has not

    return sorted({BROUGHT.distribution_of(op_type) for op_type in set(op_types) if op_type not in SCHEMAS})


def counted(op_types: Iterable[str]) -> str:
    """How many operations there are, and of which types, in words."""
    counts = Counter(op_types)
    shown = [f"{count} {name}" for name, count in counts.most_common(_MOST_SHOWN)]
    return ", ".join((*shown, *(["others"] if len(counts) > _MOST_SHOWN else []))) or "nothing"


def _canonical_type(operand: Operand) -> tuple[Any, ...]:
    type_ = operand.type
    quantization = type_.quantization
    quantization_parameters = (
        None if quantization is None else (quantization.scale, quantization.zero_point, quantization.axis)
    )
    value_dtype = None if operand.value is None else operand.value.dtype.str
    return (
        operand.lifetime.value,
        type_.dtype.value,
        len(type_.dimensions),
        type_.layout.value,
        quantization_parameters,
        value_dtype,
    )


def _contents(array: Array) -> Contents:
    if array.dtype.hasobject:
        raise NotCanonicalError("a constant holds no numbers")
    return Contents(lambda: _flat(array), array.nbytes, owner=array)


def _flat(array: Array) -> Any:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check(value: Any) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            _check(item)
    elif not isinstance(value, _PLAIN):
        raise NotCanonicalError(f"it holds {type(value).__name__}, of which is not known what it decides")
