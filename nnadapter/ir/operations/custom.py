"""CUSTOM: one node of any ONNX op, computed by a custom kernel.

Attributes and types are text, so that models can be printed and saved.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.row import Row, row
from nnadapter.ir.schema import Attributes, AttributeValue
from nnadapter.records import dataclass, field

CUSTOM = "CUSTOM"

_TYPE = re.compile(r"(\w+)\[([0-9, ]*)\]")
_TENSOR = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CustomCall:
    """Call of a custom kernel for one node."""

    domain: str
    """Domain of the op; empty for ONNX's own."""
    op_type: str
    since_version: int
    """Version of the op's schema, or without a schema the domain's opset version."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """Values of type int, float, str, tuple of these, or numpy array."""
    present: tuple[int, ...] = ()
    """Positions of present inputs, ascending."""
    outputs: tuple[OperandType, ...]

    @property
    def display_name(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def to_attributes(self) -> dict[str, str | int | tuple[int, ...]]:
        """Return the CUSTOM operation's attributes. Raises InvalidModelError if one cannot be written as text."""
        return {
            "domain": self.domain,
            "op_type": self.op_type,
            "since_version": self.since_version,
            "attributes": _written(self.attributes),
            "present": self.present,
            "output_types": written_types(self.outputs),
        }

    @classmethod
    def of(cls, attributes: Attributes) -> CustomCall:
        """Rebuild the call from the attributes of a CUSTOM operation. Raises InvalidModelError."""
        present = attributes["present"]
        version = attributes["since_version"]
        assert isinstance(present, tuple) and isinstance(version, int), "checked against the row"
        return cls(
            domain=str(attributes["domain"]),
            op_type=str(attributes["op_type"]),
            since_version=version,
            attributes=_read(str(attributes["attributes"])),
            present=tuple(map(int, present)),
            outputs=read_types(str(attributes["output_types"])),
        )

    def spread(self, operation_inputs: Sequence[Any]) -> list[Any]:
        """Return the node's inputs: the operation's inputs at the positions `present`, None at others."""
        node_inputs: list[Any] = [None] * (self.present[-1] + 1 if self.present else 0)
        for position, operation_input in zip(self.present, operation_inputs, strict=True):
            node_inputs[position] = operation_input
        return node_inputs


def written_types(types: Sequence[OperandType]) -> str:
    """Format types: `float32[1, 3]; int64[]`."""
    return "; ".join(
        f"{type_.dtype.value}[{', '.join(str(int(size)) for size in type_.dimensions)}]" for type_ in types
    )


def read_types(text: str) -> tuple[OperandType, ...]:
    """Parse a text of `written_types`. Raises InvalidModelError."""
    matches = [_TYPE.fullmatch(type_text.strip()) for type_text in text.split(";")]
    names = set(map(str, DataType))
    if any(match is None or match[1] not in names for match in matches):
        raise InvalidModelError(f"output_types is {text!r}, expected types such as 'float32[1, 3]; int64[]'")
    return tuple(
        OperandType(DataType(match[1]), tuple(int(size) for size in match[2].split(",") if size.strip()))
        for match in matches
        if match is not None
    )


def _written(attributes: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(sorted(attributes.items())), default=_as_text, separators=(",", ":"))
    except TypeError as error:
        raise InvalidModelError(f"an attribute cannot be handed to a kernel: {error}") from None


def _as_text(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_TENSOR: [value.dtype.name, list(value.shape), data]}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value is {type(value).__name__}, expected numbers, texts, lists of these or a tensor")


def _read(text: str) -> dict[str, object]:
    try:
        attributes = json.loads(text)
        return {str(name): _value(value) for name, value in attributes.items()}
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise InvalidModelError(f"attributes is {text!r}, expected a JSON object of values by name: {error}") from None


def _value(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_value, value))
    if isinstance(value, dict):
        dtype, shape, data = value[_TENSOR]
        return np.frombuffer(base64.b64decode(data), DataType(dtype).array_type).reshape(shape)
    return value


def _results(*types: OperandType, **attributes: AttributeValue) -> tuple[OperandType, ...]:
    call = CustomCall.of(attributes)
    ascending = all(previous < other for previous, other in pairwise(call.present))
    if len(call.present) != len(types) or not ascending or any(position < 0 for position in call.present):
        raise InvalidModelError(
            f"present is {list(call.present)}, expected one position for each of {len(types)} inputs, ascending"
        )
    if not call.op_type:
        raise InvalidModelError("op_type is empty, expected the name of an ONNX op")
    return call.outputs


ROWS: tuple[Row, ...] = (
    row(
        "CUSTOM(*inputs; domain: string = , op_type: string, since_version: int = 1, attributes: string = {}, "
        "present: ints, output_types: string -> *outputs)",
        _results,
        # The cost of a kernel is unknown; count at least one step per element.
        lambda outputs, *types, **attributes: sum(type_.size for type_ in outputs),
        "NNADAPTER_CUSTOM; any one ONNX op, by its domain, name and version",
        cost="other",
    ),
)
