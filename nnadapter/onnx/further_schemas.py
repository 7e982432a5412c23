"""Schemas of ops that onnx knows nothing of: those of ONNX Runtime's own domain, and of packages.

What describes the ops of a domain is imported when a model first names the domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import onnx

MICROSOFT = "com.microsoft"
_FAMILIES = {"": "nnadapter.onnx.microsoft", MICROSOFT: "nnadapter.onnx.microsoft"}
"""What describes the ops of a domain. ONNX Runtime has some in ONNX's own domain too."""
_ATTRIBUTE_TYPES: Mapping[Any, int] = {
    int: onnx.AttributeProto.INT,
    float: onnx.AttributeProto.FLOAT,
    str: onnx.AttributeProto.STRING,
    list[int]: onnx.AttributeProto.INTS,
    list[float]: onnx.AttributeProto.FLOATS,
    list[str]: onnx.AttributeProto.STRINGS,
}
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FurtherSchema:
    """What is known of an op."""

    domain: str
    op_type: str
    since_version: int
    inputs: tuple[str, ...]
    """Their names; one that may be absent ends in `?`, the last in `...` where any number may come."""
    outputs: tuple[str, ...]
    """As `inputs`."""
    types: Mapping[str, int]
    """Attribute name -> its type, as `AttributeProto.AttributeType` counts them."""
    defaults: Mapping[str, object]
    """Of the attributes that have one."""
    required: tuple[str, ...]
    """Names of the attributes that every node has."""


_SCHEMAS: dict[tuple[str, str], FurtherSchema] = {}


def add_schema(
    op_type: str,
    inputs: str,
    outputs: str,
    attributes: Mapping[str, object] = MappingProxyType({}),
    *,
    required: Sequence[str] = (),
    domain: str = MICROSOFT,
    since_version: int = 1,
) -> None:
    """Say what the schema of an op is.

    Args:
        op_type: its name.
        inputs: names, with spaces between; see `FurtherSchema.inputs`.
        outputs: the same.
        attributes: by name, the default, or the type of one that has none: int, float, str, or a list of these.
        required: attributes that every node states.
        domain: of the op.
        since_version: of the schema.
    """
    stated = {name: value if _is_type(value) else type(value) for name, value in attributes.items()}
    _SCHEMAS[domain, op_type] = FurtherSchema(
        domain=domain,
        op_type=op_type,
        since_version=since_version,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        types={name: _ATTRIBUTE_TYPES[type_] for name, type_ in stated.items()},
        defaults={name: value for name, value in attributes.items() if not _is_type(value)},
        required=tuple(required),
    )


def _is_type(value: object) -> bool:
    return value in _ATTRIBUTE_TYPES


def further_schema(domain: str, op_type: str) -> FurtherSchema | None:
    """Return the schema of an op that onnx knows nothing of, None where nobody described one."""
    family = _FAMILIES.get(domain)
    if family is not None:
        import_module(family)
    return _SCHEMAS.get((domain, op_type))


def further_schemas(domain: str) -> Mapping[str, FurtherSchema]:
    """Every schema of a domain, by op type."""
    further_schema(domain, "")
    return {op_type: schema for (of, op_type), schema in sorted(_SCHEMAS.items()) if of == domain}


def bounds_of(names: Sequence[str]) -> tuple[int, int]:
    """Return the least and the greatest number of inputs or outputs that have such names."""
    present = [position for position, name in enumerate(names) if not name.endswith("?")]
    unbounded = bool(names) and names[-1].endswith("...")
    return (present[-1] + 1 if present else 0), (_UNBOUNDED if unbounded else len(names))
