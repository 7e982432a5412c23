"""Sizes of key-value caches: which inputs are caches, and the shapes of the next token.

Usual sizes of a model that keeps a cache, such as a language model's: one more token behind a cache.

What an open dimension is, structure and names say:

1. The first dimension of an input, and every other of its name: the batch, 1.
2. An input's dimension along which a node joins it to what is new, to give both out: how much is cached, 127.
3. Others called `encoder`, `cross` or `source`, or of inputs called so: what was read before, 32.
4. Others of inputs called `past` or `cache`: how much is cached.
5. Those of inputs called a mask, but for dimensions that other inputs have too, the last of what attention behind a
   cache takes for one, and dimensions called `total` or `past + ...`: what is cached and what is new.
6. Every other: what is new, 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.schemas import MICROSOFT
from nnadapter.onnx.signature import Shapes
from partition.graph import Graph, Value

_CACHE_INPUTS: Mapping[tuple[str, str], Mapping[int, int]] = MappingProxyType(
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
    caches = _CACHE_INPUTS.get((plain_domain(node.domain), node.op_type), {})
    axes = {caches.get(position) for position, read in enumerate(node.inputs) if read == name}
    return axes.pop() if len(axes) == 1 else None


Dimension = str | tuple[str, int]
"""An open dimension: its name, or where it has none the input and the axis."""

DEFAULT_PAST_LENGTH, DEFAULT_NEW_LENGTH, DEFAULT_ENCODER_LENGTH = 127, 1, 32
"""Usual sizes; the first two together are a round number, as engines like it."""

_ENCODER = re.compile(r"(?<![a-z])(encoder|cross|source)(?![a-z])", re.IGNORECASE)
_CACHE = re.compile(r"(?<![a-z])(past|cache)(?![a-z])", re.IGNORECASE)
_MASK = re.compile(r"(?<![a-z])mask(?![a-z])", re.IGNORECASE)
_ALL = re.compile(r"(?<![a-z])total(?![a-z])|past.*\+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CacheDimensions:
    """What open dimensions are; no cache is kept where none of them is cached."""

    batch: frozenset[Dimension]
    past_lengths: frozenset[Dimension]
    total_lengths: frozenset[Dimension]
    """Of what is cached and what is new."""
    new_lengths: frozenset[Dimension]
    encoded: frozenset[Dimension] = frozenset()
    """Of what another model read, as the sentence that is translated; it stays as it is while a cache grows."""


def dimension_at(value: Value, axis: int) -> Dimension:
    """What an open dimension of an input is known by."""
    name = (value.shape or ())[axis]
    return name if isinstance(name, str) else (value.name, axis)


def cache_sizes(
    graph: Graph, nodes: Sequence[OnnxNode], inputs: Sequence[Value], stated: Mapping[Dimension, int]
) -> dict[Dimension, int]:
    """Return a size for every open dimension of the inputs; empty where the model keeps no cache.

    Args:
        graph: the model's graph.
        nodes: its nodes.
        inputs: its inputs.
        stated: sizes that are given, which hold; what is cached and what is new follows them.
    """
    roles = cache_roles(graph, nodes, inputs)
    if not roles.past_lengths:
        return {}
    of_cached, of_new = (
        _stated(roles.past_lengths, stated, DEFAULT_PAST_LENGTH),
        _stated(roles.new_lengths, stated, DEFAULT_NEW_LENGTH),
    )
    of_encoded = _stated(roles.encoded, stated, DEFAULT_ENCODER_LENGTH)
    return {**sizes_of(roles, 1, of_cached, of_new, of_encoded), **stated}


def cache_roles(graph: Graph, nodes: Sequence[OnnxNode], inputs: Sequence[Value]) -> CacheDimensions:
    """Return what the open dimensions of inputs are."""
    open_axes = [
        (value, axis)
        for value in inputs
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int) and value.dtype is not None
    ]
    batch = {dimension_at(value, axis) for value, axis in open_axes if axis == 0}
    joined, counted = set(_joined(graph, nodes)), set(_counted(graph, nodes))
    cached, encoded, total, appended, masked = (set[Dimension]() for _ in range(5))
    for value, axis in open_axes:
        dimension = dimension_at(value, axis)
        if dimension in batch:
            continue
        if isinstance(dimension, str) and _ALL.search(dimension):
            total.add(dimension)
        elif (value.name, axis) in joined:
            cached.add(dimension)
        elif _ENCODER.search(value.name) or (isinstance(dimension, str) and _ENCODER.search(dimension)):
            encoded.add(dimension)
        elif _CACHE.search(value.name):
            cached.add(dimension)
        elif _MASK.search(value.name) or (value.name, axis) in counted:
            masked.add(dimension)
        else:
            appended.add(dimension)
    encoded -= cached
    total, appended = (total | (masked - appended)) - cached - encoded, appended - cached - encoded - total
    return CacheDimensions(
        frozenset(batch), frozenset(cached), frozenset(total), frozenset(appended), frozenset(encoded)
    )


def sizes_of(
    roles: CacheDimensions, rows: int, cached: int, appended: int, encoded: int = DEFAULT_ENCODER_LENGTH
) -> dict[Dimension, int]:
    """Return a size for every open dimension."""
    groups = (
        (roles.batch, rows),
        (roles.past_lengths, cached),
        (roles.encoded, encoded),
        (roles.total_lengths, cached + appended),
        (roles.new_lengths, appended),
    )
    return {dimension: size for group, size in groups for dimension in group}


def next_token_shapes(prepared: Prepared, shapes: Shapes) -> Shapes:
    """Return the shapes of inputs if caches that are empty had grown by one, and what counts them with the new ones."""
    graph = prepared.graph
    total_dimensions = cache_roles(graph, prepared.nodes, [graph.value(name) for name in shapes]).total_lengths
    return {
        name: tuple(
            size + 1 if size == 0 or dimension_at(graph.value(name), axis) in total_dimensions else size
            for axis, size in enumerate(shape)
        )
        for name, shape in shapes.items()
    }


def agreeing(prepared: Prepared, shapes: Shapes) -> Shapes:
    """Return the shapes with as much of all as they have of what is cached and of what is new, where they say both."""
    graph = prepared.graph
    inputs = {name: graph.value(name) for name in shapes}
    roles = cache_roles(graph, prepared.nodes, list(inputs.values()))
    sizes = {
        dimension_at(value, axis): size
        for name, value in inputs.items()
        for axis, size in enumerate(shapes[name])
        if len(value.shape or ()) == len(shapes[name])
    }
    groups = [
        {sizes[dimension] for dimension in group if dimension in sizes}
        for group in (roles.past_lengths, roles.new_lengths)
    ]
    if any(len(group) != 1 for group in groups):
        return shapes
    total_size = sum(size for group in groups for size in group)
    return {
        name: tuple(
            total_size
            if len(value.shape or ()) == len(shapes[name]) and dimension_at(value, axis) in roles.total_lengths
            else size
            for axis, size in enumerate(shapes[name])
        )
        for name, value in inputs.items()
    }


def _joined(graph: Graph, nodes: Sequence[OnnxNode]) -> Iterator[tuple[str, int]]:
    """Inputs and axes along which a node joins them to something else, and the result is given out."""
    inputs, outputs = frozenset(graph.inputs), frozenset(graph.outputs)
    for node in nodes:
        if len(node.inputs) > 1 and not outputs.isdisjoint(node.outputs):
            for name in inputs.intersection(node.inputs):
                axis = joined_along(node, name, len(graph.value(name).shape or ()))
                if axis is not None:
                    yield name, axis


def _counted(graph: Graph, nodes: Sequence[OnnxNode]) -> Iterator[tuple[str, int]]:
    """Inputs, and their last axes, that a node takes for a mask."""
    inputs = frozenset(graph.inputs)
    for node in nodes:
        for name in inputs.intersection(node.inputs):
            rank = len(graph.value(name).shape or ())
            if counts_all(node, name, rank):
                yield name, rank - 1


def _stated(dimensions: Collection[Dimension], stated: Mapping[Dimension, int], usual: int) -> int:
    return max((stated[dimension] for dimension in dimensions if dimension in stated), default=usual)
