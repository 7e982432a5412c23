"""Hashes of nodes by op, attributes, small constants and producers, to find a node again in an edited model."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array, digest_of
from nnadapter.onnx.construction import unnamed_bytes
from nnadapter.onnx.model import OnnxNode, read_node
from nnadapter.records import dataclass
from partition.graph import Graph


def attribute_bytes(attributes: Mapping[str, object]) -> bytes:
    """Return a canonical encoding of `attributes`.

    1. Attributes are sorted by name; values carry kind and length. -0.0 differs from 0.0.
    2. A tensor is encoded as data type, dimensions and digest; other messages are serialized.
    3. In subgraphs, values are numbered by appearance, and their names ignored.
    """
    return _joined(_joined((name.encode(), _encoded(attributes[name]))) for name in sorted(attributes))


def tensor_bytes(array: Array) -> bytes:
    """Return a canonical encoding of an array, strings included."""
    dimensions = ",".join(map(str, array.shape)).encode()
    if array.dtype.kind == "O":  # object arrays have no byte form, so each string is length-prefixed
        contents = _joined(item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1))
        return _joined((b"strings", dimensions, contents))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return _joined((array.dtype.name.encode(), dimensions, digest_of(little).encode()))


def _joined(parts: Iterable[bytes]) -> bytes:
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
    numbers = dict(outer or {})

    def number(name: str) -> bytes:
        return numbers.setdefault(name, b"%d" % len(numbers)) if name else b""

    inputs = [_joined((number(info.name), _message_bytes(info.type))) for info in graph.input]
    tensors = [_joined((number(tensor.name), unnamed_bytes(tensor))) for tensor in graph.initializer]
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


def _message_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


DEPTH = 4
"""Levels of producers in an ancestry hash."""
_SMALL = 64
"""Maximum elements of integer constants whose contents are hashed."""
_SIZE = 16
_NONE: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeHashes:
    """Hashes per node, 32 hexadecimal digits each."""

    content_hashes: tuple[str, ...]
    ancestry_hashes: tuple[str, ...]
    """Hash of each node with producers up to `DEPTH`."""


def structure_of(graph: Graph, nodes: Sequence[OnnxNode], constants: Mapping[str, Array] = _NONE) -> NodeHashes:
    """Return content and ancestry hash of every node, in linear time.

    1. The content hash covers op, version, attributes, and whether inputs are absent, computed or constant. It also
       covers types and shapes of constants, and contents of small integers.
    2. The ancestry hash adds hashes and output indices of producers, and data types of model inputs.
    3. Neither covers names, weights or computed shapes.
    """
    node_digests = [_content_bytes(graph, node, constants) for node in nodes]
    return NodeHashes(tuple(map(bytes.hex, node_digests)), tuple(map(bytes.hex, _wired(graph, node_digests))))


def _content_bytes(graph: Graph, node: OnnxNode, constants: Mapping[str, Array]) -> bytes:
    output_mask = bytes(map(bool, node.outputs))
    parts = (
        f"{node.op_type}\0{node.domain}\0{node.since_version}\0".encode(),
        b"%d\0" % len(output_mask) + output_mask,
        *(_input_bytes(graph, name, constants) for name in node.inputs),
        attribute_bytes(node.attributes),
    )
    return _digest(b"".join(parts))


def _input_bytes(graph: Graph, name: str, constants: Mapping[str, Array]) -> bytes:
    if not name:
        return b"-"
    if name not in graph.constants or name in graph.producer:
        return b"v"
    array = constants.get(name)
    if array is not None and array.size <= _SMALL and array.dtype.kind in "iub":
        return b"c" + tensor_bytes(array)
    value = graph.value(name)
    return f"c{value.dtype}{value.shape}\0".encode()


def _wired(graph: Graph, node_digests: Sequence[bytes]) -> Sequence[bytes]:
    sources = [tuple(_sources(graph, node)) for node in range(len(graph.nodes))]
    hashes = list(node_digests)
    for _ in range(DEPTH):
        previous_hashes = hashes
        hashes = [
            _digest(digest + b"".join(tag if at is None else previous_hashes[at] + tag for at, tag in read))
            if read
            else digest
            for digest, read in zip(node_digests, sources, strict=True)
        ]
    return hashes


def _sources(graph: Graph, node: int) -> Iterator[tuple[int | None, bytes]]:
    for name in graph.nodes[node].reads:
        maker = graph.producer.get(name)
        if maker is not None:
            yield maker, b"%d;" % graph.nodes[maker].outputs.index(name)
        elif name not in graph.constants:
            yield None, f"input {graph.value(name).dtype};".encode()


def _digest(contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_SIZE).digest()
