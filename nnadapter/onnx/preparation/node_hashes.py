"""Node hashes: what a node is and where it stands, without names, equal in every process.

Hashes of nodes by what they are and where they stand, names left out: what names the same thing after an edit.

Hashes are BLAKE2b of 16 bytes over a canonical form, so they are the same in every process and on every machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array, digest_of
from nnadapter.onnx.model import OnnxNode, read_node
from partition.graph import Graph


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


DEPTH = 4
"""How many producers back a node's hash looks."""
_SMALL = 64
"""Integer constants of up to so many elements count with their contents: they are axes, shapes and sizes."""
_SIZE = 16
_NONE: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeHashes:
    """Two hashes for every node of a graph, 32 hexadecimal digits each."""

    content_hashes: tuple[str, ...]
    """Of the node without what stands around it."""
    ancestry_hashes: tuple[str, ...]
    """Of the node and the nodes before it, up to `DEPTH` of them in a row."""


def structure_of(graph: Graph, nodes: Sequence[OnnxNode], constants: Mapping[str, Array] = _NONE) -> NodeHashes:
    """Return the hashes of every node. Linear in nodes and inputs.

    1. Alone, a node is its op type, domain, schema version and attributes, and for each input whether it is absent,
       computed, or a constant. A constant counts with data type and shape, and with contents where it is a small
       one of integers. Weights do not count.
    2. Wired, a node is that and, for each computed input, which output of which node, that node being hashed in the
       same way; model inputs count with their data type.
    3. Names of nodes and values never count, nor do shapes of computed values.

    Args:
        graph: the model's own graph.
        nodes: the same nodes with their attributes read.
        constants: contents of constants, as far as they are at hand.
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
    """Each round lets every node see one producer further."""
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
    """For every computed value that a node reads, who makes it and which of its outputs it is."""
    for name in graph.nodes[node].reads:
        maker = graph.producer.get(name)
        if maker is not None:
            yield maker, b"%d;" % graph.nodes[maker].outputs.index(name)
        elif name not in graph.constants:
            yield None, f"input {graph.value(name).dtype};".encode()


def _digest(contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_SIZE).digest()
