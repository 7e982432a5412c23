"""Nodes that join what is new to a cache: which of their inputs are caches, along which axis they grow, and masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.node import OnnxNode

_CACHES: Mapping[tuple[str, str], Mapping[int, int]] = MappingProxyType(
    {
        ("", "Attention"): {4: 2, 5: 2},
        (MICROSOFT, "Attention"): {4: 3},
        (MICROSOFT, "GroupQueryAttention"): {3: 2, 4: 2},
        (MICROSOFT, "MultiHeadAttention"): {6: 2, 7: 2},
    }
)
"""Positions of inputs that are caches, and the axes along which they grow, by domain and op."""
_MASKS: Mapping[tuple[str, str], tuple[int, ...]] = MappingProxyType(
    {
        ("", "Attention"): (3,),
        (MICROSOFT, "Attention"): (3, 5),
        (MICROSOFT, "GroupQueryAttention"): (10,),
        (MICROSOFT, "MultiHeadAttention"): (4, 5),
    }
)
"""Positions of inputs whose last axis counts what is cached and what is new."""
_TAKES_ROOM = frozenset([(MICROSOFT, "GroupQueryAttention")])
"""Ops that put what is new into a cache that has room for it, where it has, and else behind it."""


def takes_room(nodes: Iterable[OnnxNode]) -> bool:
    """Whether caches of some of these nodes may have room for what is new."""
    return any((node.domain, node.op_type) in _TAKES_ROOM for node in nodes)


def counts_all(node: OnnxNode, name: str, rank: int) -> bool:
    """Return whether a node that keeps a cache takes a value of this rank for its mask, or adds it to scores."""
    positions = _MASKS.get((plain_domain(node.domain), node.op_type), ())
    return rank > 1 and any(node.input(position) == name for position in positions)


def joined_along(node: OnnxNode, name: str, rank: int) -> int | None:
    """Return the axis along which a node joins something to a value of this rank; None if it does anything else.

    Args:
        node: one that reads the value.
        name: of the value.
        rank: of the value.
    """
    if node.op_type == "Concat" and not plain_domain(node.domain):
        return node.integer("axis", 0) % rank if rank else None
    caches = _CACHES.get((plain_domain(node.domain), node.op_type), {})
    axes = {caches.get(position) for position, read in enumerate(node.inputs) if read == name}
    return axes.pop() if len(axes) == 1 else None
