"""Which function converts which schema version of which op; and the edge to protobuf, which nothing beyond it crosses.

Converters are registered by exact (domain, op type, since_version). A version that nobody has read is not converted:
there is no nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.node import OnnxNode
from nnadapter.converters.node_schema import contradiction_of
from partition.graph import Node
from partition.onnx_io import node_of

Converter = Callable[[ConversionContext, OnnxNode], None]
"""Adds a node's operations to the context, or raises Refusal."""

_CONVERTERS: dict[tuple[str, str, int], Converter] = {}
_VERSIONS: dict[tuple[str, str], tuple[int, ...]] = {}
_ONNX_DOMAIN = "ai.onnx"


def converter(op_type: str, *since_versions: int, domain: str = "") -> Callable[[Converter], Converter]:
    """Return a decorator that registers a function for exactly these schema versions of an op.

    Raises:
        ValueError: one of them has a converter already, or none is given.
    """
    if not since_versions:
        raise ValueError(f"converter of {domain or _ONNX_DOMAIN}::{op_type} names no since_version")

    def register(function: Converter) -> Converter:
        for version in since_versions:
            key = (domain, op_type, version)
            if key in _CONVERTERS:
                raise ValueError(f"{domain or _ONNX_DOMAIN}::{op_type} version {version} has a converter already")
            _CONVERTERS[key] = function
        _VERSIONS[domain, op_type] = tuple(sorted({*_VERSIONS.get((domain, op_type), ()), *since_versions}))
        return function

    return register


def lookup(domain: str, op_type: str, since_version: int) -> Converter | None:
    """The converter of exactly that schema version, or None."""
    return _CONVERTERS.get((domain, op_type, since_version))


def converted() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Every (domain, op type) that has converters, with the schema versions they are for; a read-only view."""
    return MappingProxyType(_VERSIONS)


@cache
def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """The schema version that `opset` means for an op, or None if the op is not in that opset."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, "" if domain == _ONNX_DOMAIN else domain).since_version)
    except onnx.defs.SchemaError:
        return None


@cache
def newest_since_version(domain: str, op_type: str) -> int | None:
    """The newest schema version of an op that the installed onnx has, or None if it has none."""
    try:
        return int(onnx.defs.get_schema(op_type, domain).since_version)
    except onnx.defs.SchemaError:
        return None


@cache
def schema_defaults(domain: str, op_type: str, since_version: int) -> Mapping[str, object]:
    """The attributes that a node of this schema version has without stating them; none where there is no schema."""
    if not since_version:
        return MappingProxyType({})
    schema = onnx.defs.get_schema(op_type, since_version, domain)
    stated = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}
    return MappingProxyType({name: _value(value) for name, value in stated.items()})


@cache
def data_type_name(code: int) -> str:
    """The numpy name of an element type that ONNX gives as a number, such as the attribute `to` of Cast."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return f"TensorProto.DataType({code})"


def read_node(proto: onnx.NodeProto, name: str, since_version: int, node: Node | None = None) -> OnnxNode:
    """Return a node without its protobuf.

    Args:
        proto: the node.
        name: its name in the graph that is partitioned, which is unique.
        since_version: its schema version, 0 if it has none.
        node: the same node of that graph, where it has been read already: then only attributes are read.
    """
    node = node_of(proto, name) if node is None else node
    attributes = {attribute.name: _value(attribute) for attribute in proto.attribute}
    return OnnxNode(
        name,
        node.op_type,
        node.domain,
        since_version,
        node.inputs,
        node.outputs,
        attributes,
        contradiction_of(proto, since_version, node),
    )


def _value(attribute: onnx.AttributeProto) -> object:
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
