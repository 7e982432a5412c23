"""Hashes of nodes by what they are and where they stand, names left out: what names the same thing after an edit.

Hashes are BLAKE2b of 16 bytes over a canonical form, so they are the same in every process and on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from nnadapter.ir.operand import Array
from nnadapter.onnx.attribute_bytes import attribute_bytes, tensor_bytes
from nnadapter.onnx.node import OnnxNode
from partition.graph import Graph

DEPTH = 4
"""How many producers back a node's hash looks."""
_SMALL = 64
"""Integer constants of up to so many elements count with their contents: they are axes, shapes and sizes."""
_SIZE = 16
_NONE: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeHashes:
    """Two hashes for every node of a graph, 32 hexadecimal digits each."""

    alone: tuple[str, ...]
    """Of the node without what stands around it."""
    wired: tuple[str, ...]
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
    node_digests = [_alone(graph, node, constants) for node in nodes]
    return NodeHashes(tuple(map(bytes.hex, node_digests)), tuple(map(bytes.hex, _wired(graph, node_digests))))


def _alone(graph: Graph, node: OnnxNode, constants: Mapping[str, Array]) -> bytes:
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
