"""Operator schemas: versions and attributes, of onnx and of domains that onnx does not know.

Schemas of ops that onnx knows nothing of: those of ONNX Runtime's own domain, and of packages.

What describes the ops of a domain is imported when a model first names the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from types import MappingProxyType
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from nnadapter.onnx.external_converters import ONNX_DOMAIN, external_version
from nnadapter.process.resources import memoize


def value_of_attribute(attribute: onnx.AttributeProto) -> object:
    """Return what an attribute holds: int, float, str, tuples of these, arrays for tensors; a graph as it is."""
    read = _READERS.get(attribute.type)
    return read(attribute) if read else onnx.helper.get_attribute_value(attribute)


_READERS: Mapping[int, Callable[[onnx.AttributeProto], object]] = {
    onnx.AttributeProto.INT: lambda attribute: int(attribute.i),
    onnx.AttributeProto.FLOAT: lambda attribute: float(attribute.f),
    onnx.AttributeProto.STRING: lambda attribute: attribute.s.decode("utf-8", "replace"),
    onnx.AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    onnx.AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    onnx.AttributeProto.STRINGS: lambda attribute: tuple(item.decode("utf-8", "replace") for item in attribute.strings),
    onnx.AttributeProto.TENSOR: lambda attribute: onnx.numpy_helper.to_array(attribute.t),
    onnx.AttributeProto.TENSORS: lambda attribute: tuple(map(onnx.numpy_helper.to_array, attribute.tensors)),
}


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
) -> None:
    """Say what the schema of an op is.

    Args:
        op_type: its name.
        inputs: names, with spaces between; see `FurtherSchema.inputs`.
        outputs: the same.
        attributes: by name, the default, or the type of one that has none: int, float, str, or a list of these.
        required: attributes that every node states.
        domain: of the op.
    """
    stated = {name: value if _is_type(value) else type(value) for name, value in attributes.items()}
    _SCHEMAS[domain, op_type] = FurtherSchema(
        domain=domain,
        op_type=op_type,
        since_version=1,
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


_LARGEST_OPSET = (1 << 31) - 1
"""What onnx takes for one; a model may name any number of 64 bits."""


@memoize(4096)
def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """The schema version that `opset` means for an op, or None if the op is not in that opset."""
    plain = "" if domain == ONNX_DOMAIN else domain
    if not 0 <= opset <= _LARGEST_OPSET:
        return None
    try:
        return int(onnx.defs.get_schema(op_type, opset, plain).since_version)
    except onnx.defs.SchemaError:
        return _further_version(plain, op_type, opset)


@memoize(4096)
def newest_since_version(domain: str, op_type: str) -> int | None:
    """The newest schema version of an op that the installed onnx has, or None if it has none."""
    try:
        return int(onnx.defs.get_schema(op_type, domain).since_version)
    except onnx.defs.SchemaError:
        return _further_version(domain, op_type)


def _further_version(domain: str, op_type: str, opset: float = inf) -> int | None:
    schema = further_schema(domain, op_type)
    if schema is None:
        return external_version(domain, op_type, opset)
    return None if schema.since_version > opset else schema.since_version


@memoize(4096)
def is_further(domain: str, op_type: str, since_version: int) -> bool:
    """Whether a schema is one that onnx has not; 0 is none."""
    if not since_version:
        return False
    try:
        onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return (
            further_schema(domain, op_type) is not None
            or external_version(domain, op_type, since_version) == since_version
        )
    return False


def is_external(domain: str, op_type: str, since_version: int) -> bool:
    """Whether a schema is one of which nothing is known but that a package converts it."""
    is_standard = not (domain and since_version and is_further(domain, op_type, since_version))
    return not is_standard and further_schema(domain, op_type) is None


@memoize(4096)
def schema_defaults(domain: str, op_type: str, since_version: int) -> Mapping[str, object]:
    """The attributes that a node of this schema version has without stating them; none where there is no schema."""
    if not since_version:
        return MappingProxyType({})
    if is_further(domain, op_type, since_version):
        further = further_schema(domain, op_type)
        return MappingProxyType({} if further is None else dict(further.defaults))
    schema = onnx.defs.get_schema(op_type, since_version, domain)
    stated = {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.type
    }
    return MappingProxyType({name: value_of_attribute(value) for name, value in stated.items()})


@memoize(4096)
def data_type_name(code: int) -> str:
    """The numpy name of an element type that ONNX gives as a number, such as the attribute `to` of Cast."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return f"TensorProto.DataType({code})"
