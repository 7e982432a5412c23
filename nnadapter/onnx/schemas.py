"""Schema versions: what an operator set means by an op, as the installed onnx has it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

import onnx
import onnx.defs
import onnx.helper

from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.onnx.brought_converters import ONNX_DOMAIN, external_version
from nnadapter.onnx.further_schemas import further_schema
from nnadapter.process.cache import remembered

_LARGEST_OPSET = (1 << 31) - 1
"""What onnx takes for one; a model may name any number of 64 bits."""


@remembered(4096)
def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """The schema version that `opset` means for an op, or None if the op is not in that opset."""
    plain = "" if domain == ONNX_DOMAIN else domain
    if not 0 <= opset <= _LARGEST_OPSET:
        return None
    try:
        return int(onnx.defs.get_schema(op_type, opset, plain).since_version)
    except onnx.defs.SchemaError:
        return _further_version(plain, op_type, opset)


@remembered(4096)
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


@remembered(4096)
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


def is_brought(domain: str, op_type: str, since_version: int) -> bool:
    """Whether a schema is one of which nothing is known but that a package converts it."""
    is_standard = not (domain and since_version and is_further(domain, op_type, since_version))
    return not is_standard and further_schema(domain, op_type) is None


@remembered(4096)
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


@remembered(4096)
def data_type_name(code: int) -> str:
    """The numpy name of an element type that ONNX gives as a number, such as the attribute `to` of Cast."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return f"TensorProto.DataType({code})"
