"""The nodes of atoms, converted each by itself: what they are on a host, which knows nothing of atoms."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import numpy as np

from nnadapter.converters.convert import Alone, convert_graph
from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value

_TELLING = 64
"""Elements of a constant that may decide what a node becomes: axes, sizes, exponents. Weights do not."""


def convert_per_node(
    members: Sequence[int],
    nodes: Sequence[OnnxNode],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
    read: Collection[str],
) -> Alone:
    """Convert nodes each by itself. Of those that are alike but for names and weights one is converted.

    Args:
        members: positions of the nodes in question.
        nodes: the whole graph's.
        values: what is known of each value.
        constants: contents of what is known.
        read: values that something reads.
    """
    first: dict[Hashable, int] = {}
    like = []
    for member in members:
        kind = tuple(_kind(nodes[member], values, constants, read))
        like.append(first.setdefault(kind, len(first)))
    taken = dict(reversed(list(zip(like, members, strict=True))))
    chosen = [nodes[taken[position]] for position in range(len(first))]
    made = [name for node in chosen for name in node.outputs if name in read]
    conversion = convert_graph(chosen, values, constants, made)
    return Alone(nodes=tuple(members), conversion=conversion, like=tuple(like))


def _kind(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array], read: Collection[str]
) -> Iterator[Hashable]:
    """What decides which operations a node becomes, and how much work they are."""
    yield node.domain, node.op_type, node.since_version
    for name, attribute in sorted(node.attributes.items()):
        yield name, _hashable(attribute)
    for name in node.inputs:
        value, constant = values.get(name), constants.get(name) if name else None
        yield (value.dtype, value.shape) if value is not None else (name == "",)
        if constant is not None:
            yield constant.dtype.str, constant.shape, constant.tobytes() if constant.size <= _TELLING else b""
    for name in node.outputs:
        value = values.get(name)
        yield name in read, value and value.dtype, value and value.shape


def _hashable(attribute: object) -> Hashable:
    if isinstance(attribute, np.ndarray):
        return attribute.dtype.str, attribute.shape, attribute.tobytes()
    return attribute if isinstance(attribute, Hashable) else id(attribute)
