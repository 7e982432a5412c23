"""Attributes of a node as bytes: equal bytes for equal attributes, in every process and on every machine."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.digests import digest_of
from nnadapter.ir.operand import Array
from nnadapter.onnx.node import read_node


def attribute_bytes(attributes: Mapping[str, object]) -> bytes:
    """Return the bytes that stand for `attributes`, as `OnnxNode` has them.

    1. Attributes come by name; every value carries its kind, and its length where it has one.
    2. Numbers are little-endian float64 or decimal digits, so that -0.0 is not 0.0, and a NaN is itself.
    3. Tensors are their data type, their dimensions and a digest of their contents.
    4. In sub-graphs values are numbered in the order in which they come; names of values and nodes do not count.
    5. Other messages (types, sparse tensors) are their protobuf serialization.
    """
    return _joined(_joined((name.encode(), _encoded(attributes[name]))) for name in sorted(attributes))


def tensor_bytes(array: Array) -> bytes:
    """Return bytes that stand for data type, dimensions and contents of an array; strings included."""
    dimensions = ",".join(map(str, array.shape)).encode()
    if array.dtype.kind == "O":  # strings, each with its length: there is no array form of them
        contents = _joined(item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1))
        return _joined((b"strings", dimensions, contents))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return _joined((array.dtype.name.encode(), dimensions, digest_of(little).encode()))


def _joined(parts: Iterable[bytes]) -> bytes:
    """Parts with their lengths, so that no two lists of parts give the same bytes."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _encoded(value: Any) -> bytes:
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        return encode(value)
    if isinstance(value, np.ndarray):
        return b"t" + tensor_bytes(value)
    if hasattr(value, "node"):
        return b"g" + _graph_bytes(value)
    if hasattr(value, "SerializeToString"):
        return b"m" + bytes(value.SerializeToString(deterministic=True))
    return b"l" + _joined(map(_encoded, value))


_ENCODERS: Mapping[type, Callable[[Any], bytes]] = {
    int: lambda value: b"i%d" % value,
    float: lambda value: b"f" + struct.pack("<d", value),
    str: lambda value: b"s" + value.encode("utf-8", "surrogatepass"),
}


def _graph_bytes(graph: Any, outer: dict[str, bytes] | None = None) -> bytes:
    """A sub-graph; `outer` holds the numbers of the values of the graphs around it."""
    numbers = dict(outer or {})

    def number(name: str) -> bytes:
        return numbers.setdefault(name, b"%d" % len(numbers)) if name else b""

    inputs = [_joined((number(info.name), _message_bytes(info.type))) for info in graph.input]
    tensors = [_joined((number(tensor.name), _unnamed_bytes(tensor))) for tensor in graph.initializer]
    sparse = [
        _joined((number(initializer.values.name), _message_bytes(initializer)))
        for initializer in graph.sparse_initializer
    ]
    nodes = [_node_bytes(proto, number, numbers) for proto in graph.node]
    outputs = [number(info.name) for info in graph.output]
    return _joined(map(_joined, (inputs, tensors, sparse, nodes, outputs)))


def _node_bytes(proto: Any, number: Callable[[str], bytes], numbers: dict[str, bytes]) -> bytes:
    node = read_node(proto, "", 0)
    read = _joined(map(number, node.inputs))
    bodies = {name: value for name, value in node.attributes.items() if hasattr(value, "node")}
    plain = {name: value for name, value in node.attributes.items() if name not in bodies}
    inside = _joined(_joined((name.encode(), _graph_bytes(bodies[name], numbers))) for name in sorted(bodies))
    outputs = _joined(map(number, node.outputs))
    return _joined((node.domain.encode(), node.op_type.encode(), read, attribute_bytes(plain), inside, outputs))


def _unnamed_bytes(tensor: Any) -> bytes:
    copy = type(tensor)()
    copy.CopyFrom(tensor)
    copy.name = ""
    return _message_bytes(copy)


def _message_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
