"""Schema versions: what an operator set means by an op, as the installed onnx has it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
import onnx.defs
import onnx.helper

from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.process.cache import remembered

ONNX_DOMAIN = "ai.onnx"


@remembered(4096)
def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """The schema version that `opset` means for an op, or None if the op is not in that opset."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, "" if domain == ONNX_DOMAIN else domain).since_version)
    except onnx.defs.SchemaError:
        return None


@remembered(4096)
def newest_since_version(domain: str, op_type: str) -> int | None:
    """The newest schema version of an op that the installed onnx has, or None if it has none."""
    try:
        return int(onnx.defs.get_schema(op_type, domain).since_version)
    except onnx.defs.SchemaError:
        return None


@remembered(4096)
def schema_defaults(domain: str, op_type: str, since_version: int) -> Mapping[str, object]:
    """The attributes that a node of this schema version has without stating them; none where there is no schema."""
    if not since_version:
        return MappingProxyType({})
    schema = onnx.defs.get_schema(op_type, since_version, domain)
    stated = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}
    return MappingProxyType({name: value_of_attribute(value) for name, value in stated.items()})


@remembered(4096)
def data_type_name(code: int) -> str:
    """The numpy name of an element type that ONNX gives as a number, such as the attribute `to` of Cast."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return f"TensorProto.DataType({code})"
