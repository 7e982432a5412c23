"""Text form of models, their digest, and a canonical form without names for caches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import Any

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Operand, OperandType, digest_of, flat_bytes
from nnadapter.ir.schema import AttributeValue
from nnadapter.records import dataclass

_PREFIX = 16


def to_text(model: Model) -> str:
    """Return the model as text: one line per input, constant, operation and output."""
    return _text(model, _digests(model))


def to_named_text(model: Model) -> str:
    """Return the text form with operands by name instead of index, for comparisons."""
    return _text(model, _digests(model), "")


def digest(model: Model) -> str:
    """Return the SHA-256 of the text form and all constants, hexadecimal."""
    digests = _digests(model)
    hasher = sha256(_text(model, digests).encode())
    for content_digest in digests.values():
        hasher.update(content_digest.encode())
    return hasher.hexdigest()


def _digests(model: Model) -> Mapping[int, str]:
    values = ((index, operand.value) for index, operand in enumerate(model.operands))
    return {index: digest_of(value) for index, value in values if value is not None}


def _text(model: Model, digests: Mapping[int, str], number: str = "%{}") -> str:
    lines = [f"input {_operand(model, index, number)}" for index in model.inputs]
    lines += [
        f"constant {_operand(model, index, number)} sha256 {content_digest[:_PREFIX]}"
        for index, content_digest in digests.items()
    ]
    lines += [_operation(model, operation, number) for operation in model.operations]
    lines += [f"output {_read(model, index, number)}" for index in model.outputs]
    return "\n".join(lines) + "\n"


def _operand(model: Model, index: int, number: str) -> str:
    operand = model.operands[index]
    return f"{number.format(index)} {_quoted(operand.name)}: {_type(operand.type)}".lstrip()


def _read(model: Model, index: int, number: str) -> str:
    return "-" if index == ABSENT else number.format(index) or _quoted(model.operands[index].name)


def _type(type_: OperandType) -> str:
    quantization = type_.quantization
    if quantization is None:
        return str(type_)
    along = "" if quantization.axis is None else f" along {quantization.axis}"
    return f"{type_} scale {_value(quantization.scale)} zero_point {_value(quantization.zero_point)}{along}"


def _operation(model: Model, operation: Operation, number: str) -> str:
    results = ", ".join(_operand(model, index, number) for index in operation.outputs)
    read = ", ".join(_read(model, index, number) for index in operation.inputs)
    attributes = ", ".join(f"{name}={_value(value)}" for name, value in sorted(operation.attributes.items()))
    origins = ", ".join(map(_quoted, operation.origins))
    shown_attributes, shown_origins = attributes and f" {{{attributes}}}", origins and f" from {origins}"
    return f"{results} = {operation.type}({read}){shown_attributes}{shown_origins}"


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
"""Types whose values `repr` identifies."""
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Contents of a constant, read lazily."""

    read: Callable[[], Any]
    """Returns a flat array of bytes."""
    nbytes: int
    identity: Hashable = None
    """Key that is unique in this process; None if `owner` identifies the contents."""
    owner: Array | None = None
    """Array with the contents, unless `identity` is set."""


@dataclass(frozen=True, slots=True, eq=False)
class Canonical:
    """Model without names, as SHA-256 digests and summaries."""

    structure: str
    """Digest of operations, attributes, data types and connections."""
    shapes: str
    constants: tuple[Contents, ...]
    """Constants, in an order that the structure determines."""
    operations: str
    inputs: str


class NotCanonicalError(ValueError):
    """The model has no canonical form. Caught inside the cache."""


def canonical(model: Model) -> Canonical:
    """Return the canonical form, without names, origins and compiler hints.

    Raises:
        NotCanonicalError: a dynamic shape, or a value that is not plain data.
    """
    if model.has_dynamic_shapes:
        raise NotCanonicalError("the model has dynamic shapes, which have no canonical form")
    operands = [(_canonical_type(operand), operand.value is not None) for operand in model.operands]
    operations = [
        (operation.type, tuple(operation.inputs), tuple(operation.outputs), tuple(sorted(operation.attributes.items())))
        for operation in model.operations
    ]
    packages = _packages(operation.type for operation in model.operations)
    return Canonical(
        structure=digest_of_plain((operands, operations, tuple(model.inputs), tuple(model.outputs), *packages)),
        shapes=digest_of_plain([tuple(map(int, operand.type.dimensions)) for operand in model.operands]),
        constants=tuple(_contents(operand.value) for operand in model.operands if operand.value is not None),
        operations="; of ".join((counted(operation.type for operation in model.operations), *packages)),
        inputs=", ".join(str(list(model.operands[index].type.dimensions)) for index in model.inputs),
    )


def digest_of_plain(value: Any) -> str:
    """Return the SHA-256 of plain data. Raises NotCanonicalError for anything else."""
    _check(value)
    return sha256(repr(value).encode()).hexdigest()


def _packages(op_types: Iterable[str]) -> list[str]:
    # loading the schema table is slow, and a caller with a model has it
    from nnadapter.ir.operations import BROUGHT, SCHEMAS

    return sorted({BROUGHT.distribution_of(op_type) for op_type in set(op_types) if op_type not in SCHEMAS})


def counted(op_types: Iterable[str]) -> str:
    """Return a summary such as "3 CONV_2D, 2 ADD"."""
    counts = Counter(op_types)
    shown = [f"{count} {name}" for name, count in counts.most_common(_MOST_SHOWN)]
    return ", ".join((*shown, *(["others"] if len(counts) > _MOST_SHOWN else []))) or "nothing"


def _canonical_type(operand: Operand) -> tuple[Any, ...]:
    type_ = operand.type
    quantization = type_.quantization
    return (
        operand.lifetime.value,
        type_.dtype.value,
        len(type_.dimensions),
        type_.layout.value,
        None if quantization is None else (quantization.scale, quantization.zero_point, quantization.axis),
        None if operand.value is None else operand.value.dtype.str,
    )


def _contents(array: Array) -> Contents:
    if array.dtype.hasobject:
        raise NotCanonicalError("a constant holds Python objects such as strings, which have no canonical form")
    return Contents(lambda: flat_bytes(array), array.nbytes, owner=array)


def _check(value: Any) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            _check(item)
    elif not isinstance(value, _PLAIN):
        raise NotCanonicalError(f"a value is of type {type(value).__name__}, which has no canonical form")
