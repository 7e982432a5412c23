"""What of a model decides what is compiled of it: no names, and constants apart from the rest.

Two models with equal canonical forms compute the same. A model that holds something of which that is not known has no
such form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, Operand

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
